"""``python -m draftsmith``: the same as the console script."""

import sys

from draftsmith.cli import main

if __name__ == "__main__":
    sys.exit(main())
