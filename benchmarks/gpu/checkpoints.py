"""Make the checkpoints of the check: checkpoints.py WORK LAYERS PROVED_LAYERS TAP...

WORK/target has the 4B shape with LAYERS layers, WORK/proved-target with PROVED_LAYERS, WORK/drafter a DFlash 2 drafter
of the published widths for both, which reads the outputs of the layers TAP. With no layers all are as small as the
bundled ones. Weights are random.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np

from benchmarks.gpu.phases import ROOT
from benchmarks.gpu.plan import TINY
from tests.synthetic import HIDDEN, INTERMEDIATE, VOCAB
from tests.tiny_drafter import Json, make_config, shapes_of, write

LARGE = 1 << 20  # elements from which a tensor repeats one block of random numbers, which is much faster
BLOCK = 1 << 22


def drafter_config(tiny: bool, taps: list[int]) -> Json:
    """A DFlash 2 drafter with a window, without which the other builder's export cannot run."""
    config = make_config("dflash2")
    drafter = config["dflash_config"]
    drafter["target_layer_ids"] = taps
    if not tiny:
        config |= {"hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "vocab_size": VOCAB}
        config |= {"num_hidden_layers": 5, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
        config |= {"max_position_embeddings": 262144, "rope_parameters": {"rope_type": "default", "rope_theta": 1e7}}
        drafter |= {"selector_rank": 256, "selector_top_k": 16, "mask_token_id": 248070}
    del config["num_target_layers"]  # two targets of different depth take it
    window = 64 if tiny else 2048
    config |= {"layer_types": ["sliding_attention"] * config["num_hidden_layers"], "use_sliding_window": True}
    return config | {"sliding_window": window, "block_size": drafter["block_size"]}  # the latter for the other builder


def write_drafter(folder: Path, config: Json) -> None:
    """Write it: the large tensors repeat a block."""
    rng = np.random.default_rng(5)
    block = rng.standard_normal(BLOCK, np.float32)
    blocks: dict[float, np.ndarray] = {}
    tensors = {}
    for name, shape, mean, scale in shapes_of(config):
        if np.prod(shape) < LARGE:
            values = mean + scale * rng.standard_normal(shape, np.float32)
            tensors[name] = values.astype(ml_dtypes.bfloat16)
        else:
            if scale not in blocks:
                blocks[scale] = (scale * block).astype(ml_dtypes.bfloat16)
            tensors[name] = np.resize(blocks[scale], shape)
    write(folder, config, tensors)


def main() -> None:
    """Write all."""
    work = Path(sys.argv[1])
    layers, proved, *taps = map(int, sys.argv[2:])
    for name, count in (("target", layers), ("proved-target", proved)):
        if count:
            command = [sys.executable, "-m", "scripts.make_synthetic_checkpoint", work / name, "--layers", str(count)]
            # The other builder's drafters take no tied target.
            subprocess.run([*command, "--untied"], check=True, cwd=ROOT)
        else:
            (work / name).symlink_to(ROOT / TINY)
    write_drafter(work / "drafter", drafter_config(not layers, taps))


if __name__ == "__main__":
    main()
