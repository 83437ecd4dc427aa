"""What the command line says of names and values that are not its own: those of the other builder, and typos."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from builder.peer_table import FLAGS, OPTIONS, PEER, Fate, PeerOption
from onnxkit.errors import ExportError, nearest

# Names of 0.17 that 0.18 still takes.
_OLD = {
    f"int4_{name}": name
    for name in (
        "accuracy_level",
        "algo_config",
        "block_size",
        "is_symmetric",
        "nodes_to_exclude",
        "op_types_to_quantize",
    )
}

# Values of -p and -e that others take, or that people call these by: what they are, and what to do.
_QUANTIZED = "A quantized type, which is not written yet: choose bf16 or fp16 for cuda, fp32 for cpu."
_NOT_HERE = "A provider that exports are not made for: choose cuda for NVIDIA's GPUs, or cpu."
VALUES = {
    "-p": {
        **dict.fromkeys(
            ("int4", "int8", "uint4", "uint8", "int2", "fp8", "fp4", "nvfp4", "mxfp4", "q4", "q8"), _QUANTIZED
        ),
        **dict.fromkeys(("float16", "half", "f16", "16"), "Write -p fp16."),
        **dict.fromkeys(("bfloat16", "b16"), "Write -p bf16."),
        **dict.fromkeys(("float32", "float", "f32", "single", "32"), "Write -p fp32."),
        "auto": "Name the type: bf16 or fp16 for cuda, fp32 for cpu.",
    },
    "-e": {
        **dict.fromkeys(
            ("dml", "directml", "webgpu", "nvtensorrtrtx", "trt-rtx", "tensorrt", "rocm", "migraphx"), _NOT_HERE
        ),
        **dict.fromkeys(
            ("openvino", "qnn", "coreml", "vitisai", "xnnpack", "mps", "metal", "xpu", "vulkan"), _NOT_HERE
        ),
        **dict.fromkeys(("gpu", "nvidia", "cuda:0", "cudaexecutionprovider"), "Write -e cuda for a GPU of NVIDIA's."),
        "cpuexecutionprovider": "Write -e cpu.",
    },
}

# Flags that people give as options, by their names without dashes.
_FLAGS = {
    **dict.fromkeys(("i", "input", "input_path", "model_path"), "-i"),
    **dict.fromkeys(("m", "model", "model_name", "model_id"), "-m"),
    **dict.fromkeys(("o", "output", "output_path", "output_dir"), "-o"),
    **dict.fromkeys(("p", "precision", "dtype"), "-p"),
    **dict.fromkeys(("e", "execution_provider", "provider"), "-e"),
    **dict.fromkeys(("c", "cache_dir"), "-c"),
}

_BY_NAME = {option.name: option for option in OPTIONS}
_FLAG_BY_NAME = {flag.name: flag for flag in FLAGS}


def peer_option(name: str) -> PeerOption | None:
    """The other builder's option of a name that means something else here, or nothing."""
    option = _BY_NAME.get(_OLD.get(name, name))
    return option if option is not None and option.fate is not Fate.SAME else None


def peer_names() -> list[str]:
    """The names of these options, old ones too."""
    return [name for name in (*_BY_NAME, *_OLD) if peer_option(name)]


def refused_option(option: PeerOption, name: str, value: str) -> ExportError:
    """The error of an option of the other builder whose value asks for something that does not happen here."""
    shown = "..." if option.secret else value
    also = f" ({name} is an old name of it)" if name != option.name else ""
    return ExportError(
        {
            Fate.LATER: f"An option of {PEER} is not here yet.",
            Fate.OTHER: f"An option of {PEER} has no meaning here.",
        }.get(option.fate, f"An option of {PEER} asks for something that does not happen here."),
        where=f"--extra_options {name}={shown}",
        found=f"{option.name}: {option.meaning}{also}",
        accepted=" or ".join(f"{option.name}={value}" for value in option.passes) or "an export without it",
        fix=option.here,
    )


def _misspelt(name: str, ours: Iterable[str]) -> str | None:
    """What to do about a name that nobody knows: the nearest of ours and of the other builder's, with what it means."""
    near = nearest(name, [*ours, *peer_names()])
    if near is None:
        return None
    option = peer_option(near)
    return f"Did you mean {near}?" + (f" That is of {PEER} ({option.meaning}). {option.here}" if option else "")


def refused_flag(flag: str) -> ExportError | None:
    """The error of a flag that the other builder alone has; None for any other."""
    option = _FLAG_BY_NAME.get(flag)
    if option is None or option.fate is Fate.SAME:
        return None
    return ExportError(
        f"A flag of {PEER} is not here yet.",
        where=flag,
        found=f"{flag}: {option.meaning}",
        accepted="an export without it",
        fix=option.here,
    )


def peer_flags() -> list[str]:
    """The flags that the other builder alone has."""
    return [flag.name for flag in FLAGS if flag.fate is not Fate.SAME]


def notes(pairs: Iterable[str]) -> list[str]:
    """What to say of options of the other builder that are accepted since they ask for what happens anyway."""
    parts = [(name.strip(), value.strip()) for name, _, value in (pair.partition("=") for pair in pairs)]
    given = [(name, value) for name, value in parts if peer_option(name)]
    return [f"{name}={value} asks for what happens anyway; it can be left out" for name, value in dict.fromkeys(given)]


def advice(flag: str, value: str, accepted: Iterable[str]) -> str | None:
    """What to do about a value of ``-p`` or ``-e`` that is not taken, where one knows what is meant."""
    text = value.strip().lower()
    if text in accepted:
        return f"Write {flag} {text}, in lower case."
    return VALUES.get(flag, {}).get(text)


def not_understood(name: str, where: str, known: Collection[str], *, has_value: bool) -> ExportError:
    """The error of an option whose name is not known, or that has no value."""
    hint = _misspelt(name, known)
    if name in _FLAGS:
        hint = f"That is a flag: write {_FLAGS[name]} VALUE, outside --extra_options."
    elif begun := [other for other in known if name and other.startswith(f"{name}_")]:
        hint = hint or f"Options that begin so: {', '.join(begun)}."
    if has_value:
        return ExportError(
            "An option is not known.",
            where=where,
            found=repr(name),
            accepted=", ".join(known),
            fix=hint or "Remove it; --help lists every option.",
        )
    return ExportError(
        "An option has no value.",
        where=f"--extra_options {where}",
        found=repr(name),
        accepted="key=value",
        fix=f"Write {name}=VALUE." if name in known else hint or "Add = and a value.",
    )
