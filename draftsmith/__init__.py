"""The tool on top of the exporter: the command line with its subcommands, and the proof of an export."""

from onnxkit import __version__

__all__ = ["__version__"]
