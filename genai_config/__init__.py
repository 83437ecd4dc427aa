"""The runtime's configuration file, ``genai_config.json``, as typed sections."""
