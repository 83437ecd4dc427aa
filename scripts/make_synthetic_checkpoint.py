"""Make a checkpoint of a real model's shape: python -m scripts.make_synthetic_checkpoint OUT_DIR [OPTIONS]

The shape is that of the 4B model: 8.4 GB in bf16, tied, in shards; its weights mean nothing. Needs numpy only.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.synthetic import write


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=32, help="decoder layers, a multiple of four (32: the 4B model)")
    parser.add_argument("--untied", action="store_true", help="a head of its own, 1.3 GB more")
    arguments = parser.parse_args()
    total = write(arguments.folder, arguments.layers, tied=not arguments.untied)
    print(f"{arguments.folder}: {total / 1e9:.1f} GB")


if __name__ == "__main__":
    main()
