"""What a path holds if it is not the checkpoint it should be, and what to do about it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from onnxkit.errors import ExportError, listed

CHECKPOINT = "a checkpoint folder with config.json and safetensors files"
EXPORT = "a folder with genai_config.json, as python -m builder writes it"
_CONFIG, _EXPORT, _ADAPTER = "config.json", "genai_config.json", "adapter_config.json"
_MOST_BYTES = 1 << 20

_HUB = re.compile(r"^(?:https?:/+(?:huggingface\.co|hf\.co)/)?([\w][\w.-]*/[\w.-]+?)(?:/(?:tree|blob|resolve)/.*)?/?$")
_PICKLED = re.compile(r"^(pytorch_model|model|tf_model|flax_model).*\.(bin|bin\.index\.json|h5|msgpack)$")
_RAW = (".pt", ".pth", ".bin", ".ckpt", ".distcp")

_ORIGINAL = "Take the checkpoint that it was made from, in the format of the transformers library, as safetensors."
_FROM_PICKLE = (
    "Take a revision of the repository with safetensors, or convert them with the transformers library: "
    "AutoModelForCausalLM.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)."
)


def no_folder(path: Path, option: str, accepted: str = CHECKPOINT) -> ExportError:
    """The error for a path that is not a folder.

    Args:
        path: The path.
        option: The option that named it.
        accepted: The folder that was wanted.
    """
    check = f"Check the path that {option} names."
    if path.exists():
        found, fix = "a file", f"Point {option} at the folder that holds it: {path.parent}"
        if path.suffix == ".gguf":
            found, fix = "a GGUF file, the format of llama.cpp", _ORIGINAL
        elif path.suffix in _RAW:
            found, fix = "a file of pickled weights", f"{_FROM_PICKLE} Then point {option} at that folder."
        return ExportError("The path names a file, not a folder.", where=path, found=found, accepted=accepted, fix=fix)
    found = "nothing"
    if (hub := _HUB.match(str(path))) and not path.parent.exists():
        check = f"{check} {_from_the_hub(hub[1], option)}"
    return ExportError("The folder does not exist.", where=path, found=found, accepted=accepted, fix=check)


def _from_the_hub(name: str, option: str) -> str:
    if option in ("-i", "--input"):
        return f"If it is a repository on the Hub, write -m {name}."
    return f"If it is a repository on the Hub, download it first: hf download {name} --local-dir FOLDER"


def check_folders(accepted: str = CHECKPOINT, **folders: object) -> None:
    """Check that paths are folders, before importing libraries that take seconds to load.

    Args:
        accepted: The folders that are wanted.
        folders: What the options named, by their names without dashes; values that are not paths are skipped.

    Raises:
        ExportError: A path is not a folder.
    """
    for name, path in folders.items():
        if isinstance(path, Path) and not path.is_dir():
            raise no_folder(path, name if name.isupper() else f"-{name}" if len(name) == 1 else f"--{name}", accepted)


def no_config(folder: Path, option: str) -> ExportError:
    """The error for a folder without ``config.json``."""
    names = _names(folder)
    if _ADAPTER in names:
        return _adapter(folder)
    if _EXPORT in names:
        return ExportError(
            "The folder is an export and holds no config.json.",
            where=folder,
            found=listed(names),
            accepted=CHECKPOINT,
            fix=f"Point {option} at the checkpoint that it was made from.",
        )
    inside = [name for name in names if (folder / name / _CONFIG).is_file()]
    fix = f"Point {option} at the folder that holds config.json" + (f": {folder / inside[-1]}" if inside else ".")
    if ggufs := [name for name in names if name.endswith(".gguf")]:
        fix = f"{ggufs[0]} is a GGUF file, the format of llama.cpp. {_ORIGINAL}"
    return ExportError(
        "The folder holds no config.json.",
        where=folder,
        found=listed(names) or "an empty folder",
        accepted="a checkpoint folder as the transformers library saves it",
        fix=fix,
    )


def no_weights(folder: Path, accepted: str) -> ExportError:
    """The error for a folder with ``config.json`` but no weights that can be read."""
    names = _names(folder)
    if _ADAPTER in names:
        return _adapter(folder)
    what, fix = "", "Save the model as safetensors (save_pretrained does so)."
    for found, (what_it_is, to_do) in _KINDS:
        if named := next(filter(found, names), None):
            what, fix = f"\n({named} {what_it_is})", to_do
            break
    return ExportError(
        "The checkpoint holds no weights that can be read.",
        where=folder,
        found=listed(names) + what,
        accepted=accepted,
        fix=fix,
    )


_Kind = tuple[Callable[[str], object], tuple[str, str]]
_KINDS: tuple[_Kind, ...] = (
    (re.compile(r"-of-\d+\.safetensors$").search, (
        "is a part of the weights, and the index of the parts is missing",
        "Get model.safetensors.index.json from where the checkpoint comes from.",
    )),
    (re.compile(r"\.safetensors$").search, (
        "holds tensors under a name that no checkpoint of the transformers library has",
        "If it holds the whole model under the transformers library's names, rename it to model.safetensors.",
    )),
    (re.compile(r"\.gguf$").search, ("is a GGUF file, the format of llama.cpp", _ORIGINAL)),
    (_PICKLED.match, ("holds the weights as pickles, whose loading runs code", _FROM_PICKLE)),
    (lambda name: name.endswith(_RAW), (
        "looks like the raw state of a training run", "Export the run to a Hugging Face checkpoint first.",
    )),
)  # fmt: skip


def _adapter(folder: Path) -> ExportError:
    base = ""
    with suppress(OSError, ValueError, AttributeError, RecursionError), (folder / _ADAPTER).open("rb") as file:
        base = json.loads(file.read(_MOST_BYTES)).get("base_model_name_or_path")
    of = f" of {base}" if base and isinstance(base, str) else ""
    return ExportError(
        "The folder holds an adapter (LoRA), not a model.",
        where=folder / _ADAPTER,
        found=f"an adapter{of}, which has only what training has changed",
        accepted=CHECKPOINT,
        fix="Merge it into its base with the peft library: "
        "AutoPeftModelForCausalLM.from_pretrained(FOLDER).merge_and_unload().save_pretrained(NEW_FOLDER). "
        "Then give the new folder, with the base's tokenizer files.",
    )


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# What programs add to the tensor names of a model that they wrap, and how to save the model itself.
_WRAPPERS = {
    "_orig_mod": ("torch.compile", "model._orig_mod.save_pretrained(FOLDER)"),
    "_fsdp_wrapped_module": ("FSDP", "a full state dict, gathered from all ranks, with save_pretrained(FOLDER)"),
    "_checkpoint_wrapped_module": ("activation checkpointing", "the model without it, with save_pretrained(FOLDER)"),
    "module": ("DistributedDataParallel or DeepSpeed", "model.module.save_pretrained(FOLDER)"),
    "base_model": ("peft", "model.merge_and_unload().save_pretrained(FOLDER)"),
}


def wrapped(folder: Path, names: Iterable[str]) -> ExportError | None:
    """The error for a checkpoint whose tensors have the names of a wrapper around the model; None if none has.

    Args:
        folder: The checkpoint.
        names: The names of its tensors.
    """
    names = list(names)
    for part, (wrapper, save) in _WRAPPERS.items():
        # Further inside a name, the words "module" and "base_model" may be the model's own.
        inside = part.startswith("_")
        if marked := [name for name in names if name.startswith(f"{part}.") or (inside and f".{part}." in name)]:
            return ExportError(
                f"The tensors have the names of a wrapper around the model: {wrapper}.",
                where=folder,
                found=listed(marked[:3]) + f"\n({len(marked)} of {len(names)} tensors with {part} in their names)",
                accepted="the names of the model itself, such as model.embed_tokens.weight",
                fix=f"Save the model itself: {save}. Or take {part}. out of the names in the safetensors files and the "
                "index.",
            )
    return None
