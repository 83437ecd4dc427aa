"""Make a tiny drafter for the bundled target: python -m scripts.make_tiny_drafter dflash2|dspark OUT_DIR"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.tiny_drafter import make_config, make_tensors, write


def main() -> None:
    """Write the drafter."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("dflash2", "dspark"))
    parser.add_argument("folder", type=Path, metavar="OUT_DIR", help="the folder to write")
    arguments = parser.parse_args()
    if arguments.folder.exists() and not arguments.folder.is_dir():
        parser.error(f"{arguments.folder} is a file: name a folder")
    config = make_config(arguments.kind)
    write(arguments.folder, config, make_tensors(config))


if __name__ == "__main__":
    main()
