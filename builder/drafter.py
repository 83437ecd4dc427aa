"""The drafter of a build: read, checked against its target, and what follows from it for the target's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from builder.family import Target
from builder.model_config import ModelConfig
from builder.option import any_of, drafter_of
from builder.option_table import OPTIONS, drafter_setting
from builder.options import BuildOptions
from drafters.checkpoint import conventions
from drafters.checkpoint import names as draft
from drafters.checkpoint.config import DrafterConfig
from drafters.checkpoint.identity import Identity, identity
from drafters.checkpoint.kinds import Family, RuntimeKind
from drafters.checkpoint.names import draft_names
from drafters.checkpoint.reading import read_identified
from drafters.checkpoint.sections import ConfigSections
from genai_config import runtime
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.safetensors_file import same_bytes


@dataclass(frozen=True)
class Drafter:
    """A drafter that fits its target.

    Attributes:
        checkpoint: Its folder, opened.
        config: Its configuration, with a block of the length that is exported.
        trained_block: The length of the block that it was trained with.
        left_out: Stored tensors that its graph does not read, each with the reason.
        last_tap: What it reads of the target's last layer, ``raw`` or ``normed``; None if it has no tap there.
    """

    checkpoint: Checkpoint
    config: DrafterConfig
    trained_block: int
    left_out: Mapping[str, str]
    last_tap: str | None = None

    @property
    def title(self) -> str:
        """What to call its kind."""
        return self.config.family.label

    def window(self, context_length: int) -> int:
        """The runtime's ``sliding_window``: a DFlash 2 drafter must have one, if need be one wider than any context."""
        if self.config.window is not None:
            return self.config.window
        return context_length + self.config.block_size if self.config.kind == RuntimeKind.DFLASH2 else -1

    def token_bytes(self) -> int:
        """Bytes of cache for a position: keys and values of all layers, in 16 bits."""
        return runtime.token_bytes(len(self.config.layers), self.config.num_key_value_heads, self.config.head_dim)

    def ring_pages(self, context_length: int, page_size: int) -> int | None:
        """Pages of a request's ring in the runtime; None if the cache grows with the text instead."""
        window = self.window(context_length)
        return None if window < 0 else runtime.ring_pages(window, self.config.block_size, page_size)


def read(options: BuildOptions, target: Target, *, headers_only: bool = False) -> Drafter:
    """Open the drafter's folder and check that it fits the target. The only weights read are tables that both have.

    Args:
        options: The request.
        target: The target.
        headers_only: Whether the drafter's files hold headers alone.

    Raises:
        ExportError: The folder, its kind, its configuration or an option does not fit.
    """
    assert isinstance(options.drafter, Path) and options.drafter_option is not None
    option = f"--extra_options {options.drafter_option.name}"
    folder = Checkpoint(options.drafter, option, headers_only=headers_only)
    found = identity(folder)
    _check_kind(options, found.family)
    config = read_identified(
        folder,
        found,
        options.of_drafter("top_k", found.family),
        options.of_drafter("block_size", found.family),
        rope_theta=options.of_drafter("rope_theta", found.family),
        target_vocab=target.config.vocab_size,
    )
    most = (config.draft_vocab_size or config.vocab_size) if config.reduced else config.vocab_size
    if config.top_k > most:
        raise misfit(drafter_setting("top_k", found.family).name, config.top_k, f"1 to {most} (the rows of its head)")
    _check_fit(folder, found.sections, config, target.config)
    config, shared = sharing(folder, config, target)
    last = (
        conventions.last_tap(found.dialect, options.last_tap)
        if target.config.num_hidden_layers in config.taps
        else None
    )
    added = [*_rotary_notes(config, target.config, options), *_vocabulary_notes(found, target.config)]
    if last:
        added.append(_last_tap_note(last, found, options))
    config = replace(config, notes=(*config.notes, *added))
    return Drafter(folder, _shortened(options, config), config.block_size, {**found.left_out, **shared}, last)


def _rotary_notes(config: DrafterConfig, target: ModelConfig, options: BuildOptions) -> list[str]:
    """A note where a drafter turns its positions with another base than its target, as few do that were trained well.

    Context keys come from the target's hidden states at the same positions, but the drafter rotates them by itself, so
    that another base is no fault in itself; it is where an exporter wrote what was not trained with.
    """
    own, targets = config.rotary.theta, target.rotary.theta
    if own == targets or options.drafter_rope_theta is not None:
        return []
    return [
        f"its rotary base is {own:g}, the target's {targets:g}; most drafters are trained with their target's. If few "
        f"drafts are accepted, compare an export with drafter_rope_theta={targets:g}"
    ]


def _vocabulary_notes(found: Identity, target: ModelConfig) -> list[str]:
    declared = found.sections.integer("vocab_size")
    if declared == target.vocab_size:
        return []
    return [f"its vocab_size is {declared}, the target's {target.vocab_size}; it has no row for each token, and fits"]


def _last_tap_note(last: str, found: Identity, options: BuildOptions) -> str:
    """What is read of the target's last layer, why, and how to have the other."""
    ways = {"raw": "before the final norm", "normed": "behind the final norm"}
    why = "as last_tap asks for" if options.last_tap else f"as {found.dialect.name} captures it while training"
    other = "raw" if last == "normed" else "normed"
    return f"it reads the target's last layer {ways[last]}, {why}; last_tap={other} has it {ways[other]}"


def sharing(drafter: Checkpoint, config: DrafterConfig, target: Target) -> tuple[DrafterConfig, dict[str, str]]:
    """The drafter without its own copies of the target's tables: tables that are equal byte for byte are shared.

    Those tables' stored names come with it, each with the reason why the table is left out.
    """
    stored = draft_names(drafter)
    tables = {
        "own_embedding": (draft.EMBEDDING, target.stored_name(target.embedding)),
        "own_head": (draft.HEAD, target.stored_name(target.head)),
    }
    notes, left_out = [], {}
    for field, (own, targets) in tables.items():
        if not getattr(config, field) or (config.reduced and field == "own_head"):
            continue
        theirs = target.checkpoint.tensors.get(targets)
        if theirs is not None and same_bytes(drafter.tensors[stored(own)], theirs):
            left_out[stored(own)] = f"the same as the target's {targets}, which is shared"
            config = replace(config, own_head=False) if field == "own_head" else replace(config, own_embedding=False)
        else:
            notes.append(f"{stored(own)} differs from the target's {targets} and is kept as the drafter's own")
    return replace(config, notes=(*config.notes, *notes)), left_out


def _check_fit(checkpoint: Checkpoint, declared: ConfigSections, config: DrafterConfig, target: ModelConfig) -> None:
    """The sizes that a drafter has from its target."""
    hidden_key = "target_hidden_size" if "target_hidden_size" in declared else "hidden_size"
    for key, wanted in (
        ("hidden_size", target.hidden_size),
        (hidden_key, target.hidden_size),
        ("num_target_layers", target.num_hidden_layers),
        ("target_num_hidden_layers", target.num_hidden_layers),
    ):
        found = declared.integer(key, default=wanted)
        if found != wanted:
            raise _other_target(declared.place(key), found, f"{wanted}, as the target has")
    if config.vocab_size != target.vocab_size:
        raise _other_vocabulary(declared.place("vocab_size"), config, target)
    beyond = [layer for layer in config.target_layer_ids if layer >= target.num_hidden_layers]
    if beyond:
        accepted = f"0 to {target.num_hidden_layers - 1}: the target has {target.num_hidden_layers} layers"
        taps = declared.first_of(*conventions.TAP_KEYS)
        raise _other_target(declared.place(str(taps)), f"the output of layer {beyond[0]}", accepted)


def _other_vocabulary(where: str, config: DrafterConfig, target: ModelConfig) -> ExportError:
    """The error for a drafter with tables of its own whose number of rows is not the target's."""
    difference = config.vocab_size - target.vocab_size
    way = "more" if difference > 0 else "fewer"
    return ExportError(
        "The drafter's vocabulary is not the target's.",
        where=where,
        found=f"{config.vocab_size}, {abs(difference)} {way} than the target's {target.vocab_size}",
        accepted=f"{target.vocab_size}: the drafter has tables with a row for each token",
        fix="Use the release of the target that it was trained for. If one of the two was padded or trimmed, bring "
        "both to one number of rows: resize the target's embedding and head, or the drafter's tables and vocab_size.",
    )


def _other_target(where: str, found: object, accepted: str) -> ExportError:
    return ExportError(
        "The drafter belongs to another target.",
        where=where,
        found=found,
        accepted=accepted,
        fix="Pair the target with the drafter that was trained for it.",
    )


def _check_kind(options: BuildOptions, kind: Family) -> None:
    """Check that the option which names the folder, and those of a kind's own, are of this kind."""
    path, title = options.drafter_option, kind.label
    assert path is not None
    if kind not in path.takes:
        fitting = [option.name for option in OPTIONS if kind in option.takes]
        raise ExportError(
            "The drafter is of a different kind.",
            where=f"--extra_options {path.name}={options.drafter}",
            found=f"a {title} drafter, by its tensors",
            accepted=drafter_of(path.takes),
            fix=f"Write {any_of([f'{name}={options.drafter}' for name in fitting])}.",
        )
    for option in options.given:
        if option.scope.kinds and kind not in option.scope.kinds:
            value = getattr(options, option.name)
            raise misfit(option.name, value, f"options of a {title} drafter, which this one is")


def _shortened(options: BuildOptions, config: DrafterConfig) -> DrafterConfig:
    """The drafter with the requested number of drafts, at most the number it was trained with."""
    asked = options.of_drafter("drafts", config.family)
    if asked is None:
        return config
    if asked > config.num_draft_tokens:
        option = drafter_setting("drafts", config.family)
        raise misfit(option.name, asked, f"at most {config.num_draft_tokens}: its block_size is {config.block_size}")
    return config.shortened(asked)


def misfit(option: str, value: object, accepted: str) -> ExportError:
    """The error for an option whose value the drafter does not support."""
    return ExportError(
        "An option's value does not fit the drafter.",
        where=f"--extra_options {option}={value}",
        found=value,
        accepted=accepted,
        fix="Correct the value, or leave the option out.",
    )
