"""Make a tiny drafter for the bundled target: python -m scripts.make_tiny_drafter dflash2|dspark OUT_DIR"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.tiny_drafter import make_config, make_tensors, write


def main() -> None:
    """Write the drafter."""
    kind, folder = sys.argv[1], Path(sys.argv[2])
    config = make_config(kind)
    write(folder, config, make_tensors(config))


if __name__ == "__main__":
    main()
