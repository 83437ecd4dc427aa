"""Make the tiny Qwen 3.5 checkpoint that tests and the demo export: make_tiny_checkpoint.py OUT_DIR

Eight layers (three linear and one full, twice) with random weights, a vision encoder and an MTP head to be left out,
and a byte-level BPE tokenizer trained on text that is generated here. No linear layer is as wide as the vocabulary, no
two of the widths that could be confused are equal, and no norm weight is zero: each would hide a fault.
Needs the extras "verify" and "dev".
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

VOCAB = 640
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PAD, _, END = range(3)

TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 128,
    "intermediate_size": 288,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 48,
    "max_position_embeddings": 4096,
    "initializer_range": 0.03,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000000.0,
        "partial_rotary_factor": 0.25,
        "mrope_section": [3, 3, 2],
        "mrope_interleaved": True,
    },
    "eos_token_id": PAD,
    "pad_token_id": PAD,
    "tie_word_embeddings": False,
}
VISION = {
    "depth": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_heads": 2,
    "patch_size": 4,
    "out_hidden_size": 128,
    "num_position_embeddings": 16,
}

CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def generated_text(lines: int) -> list[str]:
    """Lines of three kinds: little stories, code, JSON."""
    rng = random.Random(1)
    names = ["Ada", "Bo", "Chidi", "Dana", "Émile", "Farah", "Goro", "Hana"]
    syllables = ["lan", "ter", "ri", "ver", "lo", "om", "en", "gar", "den", "let", "mo", "un", "ta", "clo", "ck", "sta"]
    things = ["".join(rng.choices(syllables, k=rng.randint(2, 4))) for _ in range(200)]
    verbs = ["found", "mended", "followed", "drew", "carried", "forgot", "heard", "sold", "painted", "measured"]
    kinds = [
        lambda: f"{rng.choice(names)} {rng.choice(verbs)} the {rng.choice(things)} near the {rng.choice(things)}.",
        lambda: (
            f"def {rng.choice(verbs)}_{rng.choice(things)}(x: int) -> int:\n    return x * {rng.randint(2, 99)} + 1"
        ),
        lambda: json.dumps({"name": rng.choice(names), "item": rng.choice(things), "count": rng.randint(0, 999)}),
    ]
    return [rng.choice(kinds)() for _ in range(lines)]


def make_tokenizer(folder: Path) -> None:
    """A tokenizer of Qwen's kind, with its files named and filled as the releases have them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(generated_text(3000), trainer)
    assert tokenizer.get_vocab_size() == VOCAB, tokenizer.get_vocab_size()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": TEXT["max_position_embeddings"],
        "added_tokens_decoder": {
            str(i): {
                "content": token,
                "special": True,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "single_word": False,
            }
            for i, token in enumerate(SPECIAL)
        },
    }
    write_json(folder / "tokenizer_config.json", config)
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def make_weights() -> dict[str, torch.Tensor]:
    """The model's tensors in bf16, with norms, decays and steps set to values that a trained model could have."""
    torch.manual_seed(7)
    model = Qwen3_5ForConditionalGeneration(Qwen3_5Config(text_config=dict(TEXT), vision_config=dict(VISION)))
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name.endswith("linear_attn.norm.weight"):
            tensor = 1 + 0.2 * torch.randn_like(tensor)  # stored as applied
        elif name.endswith("norm.weight") and "visual" not in name:
            tensor = 0.3 * torch.randn_like(tensor)  # stored without its +1
        elif name.endswith("A_log"):
            tensor = torch.log(torch.empty_like(tensor).uniform_(0.5, 8))
        elif name.endswith("dt_bias"):
            step = torch.exp(torch.empty_like(tensor).uniform_(math.log(0.005), math.log(0.2)))
            tensor = step + torch.log(-torch.expm1(-step))  # the inverse of softplus
        tensors[name] = tensor.to(torch.bfloat16).contiguous()
    for name, shape in {"mtp.fc.weight": (128, 256), "mtp.norm.weight": (128,)}.items():
        tensors[name] = (0.03 * torch.randn(shape)).to(torch.bfloat16)
    return tensors


def make_config() -> dict[str, object]:
    """``config.json`` as a release writes it, with the keys that only some tools know."""
    text = dict(TEXT, model_type="qwen3_5_text", hidden_act="silu", rms_norm_eps=1e-6, attention_bias=False)
    text |= {"attn_output_gate": True, "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "dtype": "bfloat16"}
    text |= {"mtp_num_hidden_layers": 1, "use_cache": True, "attention_dropout": 0.0}
    text["layer_types"] = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(8)]
    return {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "dtype": "bfloat16",
        "text_config": text,
        "vision_config": dict(VISION, model_type="qwen3_5_vision"),
        "tie_word_embeddings": False,
        "image_token_id": 636,
        "video_token_id": 637,
        "vision_start_token_id": 638,
        "vision_end_token_id": 639,
    }


def write_json(path: Path, data: object) -> None:
    """Write JSON as the Hub's files look."""
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Write the checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="OUT_DIR", help="the folder to write")
    folder: Path = parser.parse_args().folder
    if folder.exists() and not folder.is_dir():
        parser.error(f"{folder} is a file: name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    save_file(make_weights(), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the library makes it private
    write_json(folder / "config.json", make_config())
    generation = {"eos_token_id": [END, PAD], "pad_token_id": PAD, "do_sample": False}
    write_json(folder / "generation_config.json", generation)
    make_tokenizer(folder)


if __name__ == "__main__":
    main()
