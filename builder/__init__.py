"""The exporter: options, checks, the composite build, atomic output. ``python -m builder`` is the export alone."""
