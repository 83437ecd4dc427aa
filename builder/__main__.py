"""``python -m builder``: the export alone."""

import sys

from builder.cli import main

if __name__ == "__main__":
    sys.exit(main())
