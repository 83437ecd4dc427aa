"""The drafter of a build: read, checked against its target, and what follows from it for the target's options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from builder.option_table import DRAFTER_OPTIONS
from builder.options import BuildOptions
from builder.qwen35.config import TargetConfig
from builder.qwen35.names import EMBEDDING, HEAD, StoredNames
from drafters.checkpoint import conventions, reading
from drafters.checkpoint.config import DrafterConfig, DSpark
from drafters.checkpoint.homes import Homes
from drafters.checkpoint.identify import TITLES
from drafters.checkpoint.keys import DFLASH, DFLASH2, DSPARK
from drafters.checkpoint.names import draft_names
from drafters.checkpoint.reading import Identity, identity, read_identified
from drafters.graph.build import build_drafter
from drafters.graph.drafter import DrafterOptions
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint
from onnxkit.weights.manifest import plan_tensors
from onnxkit.weights.safetensors_file import same_bytes

# Drafts that the Engine takes in one step, whatever is configured.
ENGINE_DRAFTS = 7

# Requests at once, and how much of the GPU a drafter's cache may take before fewer are chosen.
MAX_BATCH_SIZE, POOL_LIMIT = 16, 8_000_000_000


@dataclass(frozen=True)
class Drafter:
    """A drafter that fits its target.

    Attributes:
        checkpoint: Its folder, opened.
        config: Its configuration, with a block of the length that is exported.
        trained_block: The length of the block that it was trained with.
        last_tap: What it reads of the target's last layer, ``raw`` or ``normed``; None where it has no tap there.
    """

    checkpoint: Checkpoint
    config: DrafterConfig
    trained_block: int
    last_tap: str | None = None

    @property
    def title(self) -> str:
        """What to call its kind."""
        return TITLES[self.config.family]

    def window(self, context_length: int) -> int:
        """The runtime's ``sliding_window``: a DFlash 2 drafter must have one, if need be one that nothing leaves."""
        if self.config.window is not None:
            return self.config.window
        return context_length + self.config.block_size if self.config.kind == DFLASH2 else -1

    def token_bytes(self) -> int:
        """Bytes of cache for a position: keys and values of all layers, in 16 bits."""
        return 4 * len(self.config.layers) * self.config.num_key_value_heads * self.config.head_dim

    def ring_pages(self, context_length: int, page_size: int) -> int | None:
        """Pages of a request's ring in the runtime; None where the cache grows with the text instead."""
        window, block = self.window(context_length), self.config.block_size
        return None if window < 0 else -(-(window + 2 * block) // page_size) + 1


def read(
    options: BuildOptions,
    target: TargetConfig,
    checkpoint: Checkpoint,
    names: StoredNames,
    *,
    headers_only: bool = False,
) -> Drafter:
    """Open the drafter's folder and see that it fits the target. Of weights, only tables that both have are read.

    Args:
        options: The request.
        target: The target's configuration.
        checkpoint: The target's folder, opened.
        names: The names of its tensors.
        headers_only: Whether the drafter's files hold headers alone.

    Raises:
        ExportError: The folder, its kind, its configuration or an option does not fit.
    """
    assert isinstance(options.drafter, Path)
    folder = Checkpoint(options.drafter, f"--extra_options {options.drafter_option}", headers_only=headers_only)
    found = identity(folder)
    _check_kind(options, found.family)
    top_k = options.dspark_top_k if found.family == DSPARK else options.dflash2_top_k
    config = read_identified(
        folder,
        found,
        top_k,
        options.drafter_block_size,
        rope_theta=options.drafter_rope_theta,
        target_vocab=target.vocab_size,
    )
    most = (config.draft_vocab_size or config.vocab_size) if config.reduced else config.vocab_size
    if config.top_k > most:
        raise _misfit(f"{config.option_prefix}_top_k", config.top_k, f"1 to {most} (the rows of its head)")
    _check_fit(folder, found.homes, config, target)
    config = sharing(folder, config, checkpoint, names)
    last = conventions.last_tap(found.dialect, options.last_tap) if target.num_hidden_layers in config.taps else None
    added = [*_rotary_notes(config, target, options), *_vocabulary_notes(found, target)]
    if last:
        added.append(_last_tap_note(last, found, options))
    config = replace(config, notes=(*config.notes, *added))
    return Drafter(folder, _shortened(options, config), config.block_size, last)


def _rotary_notes(config: DrafterConfig, target: TargetConfig, options: BuildOptions) -> list[str]:
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


def _vocabulary_notes(found: Identity, target: TargetConfig) -> list[str]:
    declared = found.homes.integer("vocab_size")
    if declared == target.vocab_size:
        return []
    return [f"its vocab_size is {declared}, the target's {target.vocab_size}; it has no row for each token, and fits"]


def _last_tap_note(last: str, found: Identity, options: BuildOptions) -> str:
    """What is read of the target's last layer, why, and how to have the other."""
    ways = {"raw": "before the final norm", "normed": "behind the final norm"}
    why = "as last_tap asks for" if options.last_tap else f"as {found.dialect.name} captures it while training"
    other = "raw" if last == "normed" else "normed"
    return f"it reads the target's last layer {ways[last]}, {why}; last_tap={other} has it {ways[other]}"


def sharing(drafter: Checkpoint, config: DrafterConfig, target: Checkpoint, names: StoredNames) -> DrafterConfig:
    """The drafter without those tables of its own that are, byte for byte, the target's: they are shared instead."""
    stored = draft_names(drafter)
    tables = {
        "own_embedding": (reading.EMBEDDING, names(EMBEDDING)),
        "own_head": (reading.HEAD, names(EMBEDDING if names.tied else HEAD)),
    }
    notes = []
    for field, (own, targets) in tables.items():
        if not getattr(config, field) or (config.reduced and field == "own_head"):
            continue
        if targets in target.tensors and same_bytes(drafter.tensors[stored(own)], target.tensors[targets]):
            drafter.claim([stored(own)])
            config = replace(config, own_head=False) if field == "own_head" else replace(config, own_embedding=False)
        else:
            notes.append(f"{stored(own)} differs from the target's {targets} and is kept as the drafter's own")
    return replace(config, notes=(*config.notes, *notes))


def _check_fit(checkpoint: Checkpoint, declared: Homes, config: DrafterConfig, target: TargetConfig) -> None:
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
        taps = declared.first_of("target_layer_ids", "aux_hidden_state_layer_ids", "eagle_aux_hidden_state_layer_ids")
        raise _other_target(declared.place(str(taps)), f"the output of layer {beyond[0]}", accepted)


def _other_vocabulary(where: str, config: DrafterConfig, target: TargetConfig) -> ExportError:
    """A drafter with tables of its own, which have another number of rows than the target's."""
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


def _check_kind(options: BuildOptions, kind: str) -> None:
    """See that the path's option, and those of a kind's own, are of this kind. DFlash is asked for as DFlash 2 is."""
    path, title = options.drafter_option, TITLES[kind]
    kind = DFLASH2 if kind == DFLASH else kind
    if path not in ("drafter_path", f"{kind}_path"):
        raise ExportError(
            "The drafter is of another kind.",
            where=f"--extra_options {path}={options.drafter}",
            found=f"a {title} drafter, by its tensors",
            accepted=f"a {TITLES[path.removesuffix('_path')]} drafter",
            fix=f"Write {kind}_path={options.drafter}, or drafter_path, which takes either kind.",
        )
    for option in DRAFTER_OPTIONS:
        value = getattr(options, option)
        if value is not None and not option.startswith((f"{kind}_", "drafter_")):
            raise _misfit(option, value, f"options of a {title} drafter, which this one is")


def _shortened(options: BuildOptions, config: DrafterConfig) -> DrafterConfig:
    """The drafter with as many drafts as are asked for: no more than it was trained with."""
    option = f"{config.option_prefix}_num_draft_tokens"
    asked = getattr(options, option)
    if asked is None:
        return config
    if asked > config.num_draft_tokens:
        raise _misfit(option, asked, f"at most {config.num_draft_tokens}: its block_size is {config.block_size}")
    return config.shortened(asked)


def _misfit(option: str, value: object, accepted: str) -> ExportError:
    return ExportError(
        "An option's value does not fit the drafter.",
        where=f"--extra_options {option}={value}",
        found=value,
        accepted=accepted,
        fix="Correct the value, or leave the option out.",
    )


def settle(options: BuildOptions, drafter: Drafter, context_length: int, page_size: int) -> BuildOptions:
    """The options with all that follows from the drafter filled in.

    Raises:
        ExportError: An option that is given says something else.
    """
    config, given = drafter.config, options.aux_hidden_state_layers
    if given and given != config.taps:
        raise ExportError(
            "The taps are not those that the drafter reads.",
            where=f"--extra_options aux_hidden_state_layers={','.join(map(str, given))}",
            found=", ".join(map(str, given)),
            accepted=f"{', '.join(map(str, config.taps))}, in this order: the outputs of its target_layer_ids "
            f"{', '.join(map(str, config.target_layer_ids))} enter the layers after them",
            fix="Leave aux_hidden_state_layers out; it follows from the drafter.",
        )
    if options.prefix_caching and config.kind == DSPARK:
        raise _misfit("prefix_caching", "true", "false, or nothing: the Engine has no prefix caching with DSpark")
    if options.last_tap and drafter.last_tap is None:
        raise _misfit("last_tap", options.last_tap, "nothing: the drafter does not read the target's last layer")
    drafts = options.max_draft_tokens or min(config.num_draft_tokens, ENGINE_DRAFTS)
    if drafts > config.num_draft_tokens:
        raise _misfit("max_draft_tokens", drafts, f"1 to {config.num_draft_tokens}, the drafts of a block")
    capacity = drafts if options.state_update_capacity is None else options.state_update_capacity
    if capacity < drafts:
        raise _misfit("state_update_capacity", capacity, f"{drafts} to 8: max_draft_tokens is {drafts}")
    return replace(
        options,
        use_paged_attention=True,
        aux_hidden_state_layers=config.taps,
        last_tap=drafter.last_tap,
        max_draft_tokens=drafts,
        state_update_capacity=capacity,
        max_batch_size=options.max_batch_size or _batch_size(drafter, context_length, page_size),
    )


def _batch_size(drafter: Drafter, context_length: int, page_size: int) -> int:
    """As many requests as the drafter's cache has room for, at most the runtime's own default."""
    pages = drafter.ring_pages(context_length, page_size)
    if pages is None:
        return MAX_BATCH_SIZE
    request = pages * page_size * drafter.token_bytes()
    return max(1, min(MAX_BATCH_SIZE, POOL_LIMIT // request))


def plan_drafter(drafter: Drafter, options: DrafterOptions, *, allow_nonfinite: bool = False) -> ir.Model:
    """The drafter's graph, every initializer but the shared ones with its tensor.

    Raises:
        ExportError: Tensors are missing, misshapen, of another type, or read by nothing.
    """
    model, module = build_drafter(drafter.config, options)
    names = draft_names(drafter.checkpoint)
    plan_tensors(module, drafter.checkpoint, names, allow_nonfinite=allow_nonfinite)
    return model


def notes(drafter: Drafter, options: BuildOptions, context_length: int) -> list[str]:
    """What the user should know of the pair."""
    config, used = drafter.config, options.max_draft_tokens
    found = []
    if config.block_size < drafter.trained_block and not all(layer.causal for layer in config.layers):
        found.append(
            f"drafter: trained with blocks of {drafter.trained_block} rows, exported with {config.block_size}; where a "
            "block is not causal its rows see fewer masks than in training"
        )
    if used and config.num_draft_tokens > used:
        found.append(
            f"drafter: the Engine uses {used} of the {config.num_draft_tokens} drafts of a block; "
            f"{config.option_prefix}_num_draft_tokens={used} makes the block shorter, and quicker"
        )
    if isinstance(config.variant, DSpark) and config.variant.confidence_width:
        found.append("drafter: the confidence head is left out; the runtime has no use for it")
    trained = config.max_position_embeddings
    if trained and trained < context_length:
        found.append(
            f"drafter: it was made for {trained} positions, the context has {context_length}; beyond the former its "
            "drafts may be poor"
        )
    return [*found, *(f"drafter: {note}" for note in (*config.notes, *drafter.checkpoint.index_notes()))]
