"""A whole request, checked before anything else happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from builder.hub_name import HubName
from builder.option_table import DRAFTER_OPTIONS, DRAFTER_PATHS, PACKED_OPTIONS
from onnxkit.errors import ExportError, did_you_mean

# Execution providers, the precisions that their kernels have for these graphs, and why they have no other.
PRECISIONS = {"cpu": ("fp32",), "cuda": ("bf16", "fp16")}
_WHY = {
    "cpu": "most operators have no 16-bit kernel on the CPU",
    "cuda": "onnxruntime-gpu has no float32 attention, and would move the whole cache to the CPU for each token",
}
_ALL_PRECISIONS = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class BuildOptions:
    """A whole request. The fields from ``context_length`` on are those of the table; None means left to others.

    Attributes:
        output: The folder to write.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        provider: ``cpu`` or ``cuda``.
        input: The checkpoint's folder; or
        model: the name of its repository on the Hub, with ``@revision`` where it is not the main branch.
        cache_dir: Where to keep what comes from the Hub; None for the Hub's own cache.
    """

    output: Path
    precision: str
    provider: str
    input: Path | None = None
    model: str | None = None
    cache_dir: Path | None = None
    context_length: int | None = None
    include_hidden_states: bool = False
    prune_lm_head: bool = True
    aux_hidden_state_layers: tuple[int, ...] = ()
    allow_nonfinite: bool = False
    last_tap: str | None = None
    use_paged_attention: bool | None = None
    paged_block_size: int | None = None
    state_update_capacity: int | None = None
    max_draft_tokens: int | None = None
    max_batch_size: int | None = None
    max_scheduled_tokens: int | None = None
    num_blocks: int | None = None
    gpu_utilization_factor: float | None = None
    paged_chunk_size: int | None = None
    enable_cuda_graph: bool | None = None
    prefix_caching: bool | None = None
    drafter_path: Path | HubName | None = None
    dflash2_path: Path | HubName | None = None
    dspark_path: Path | HubName | None = None
    drafter_block_size: int | None = None
    drafter_rope_theta: float | None = None
    dflash2_num_draft_tokens: int | None = None
    dflash2_top_k: int | None = None
    dspark_num_draft_tokens: int | None = None
    dspark_top_k: int | None = None

    @property
    def drafter(self) -> Path | HubName | None:
        """The drafter's folder, or its repository on the Hub."""
        return self.drafter_path or self.dflash2_path or self.dspark_path

    @property
    def drafter_option(self) -> str:
        """The option that names the drafter's folder, for messages."""
        return next((name for name in DRAFTER_PATHS if getattr(self, name) is not None), DRAFTER_PATHS[0])

    def __post_init__(self) -> None:
        if (self.input is None) == (self.model is None):
            raise ExportError(
                "The checkpoint to export is named twice." if self.input else "No checkpoint to export is named.",
                where="-i and -m",
                found=f"-i {self.input} -m {self.model}" if self.input else "neither -i nor -m",
                accepted="-i with a local folder, or -m with the name of a repository on the Hub",
                fix="Give one of the two.",
            )
        _one_of("-e", self.provider, tuple(PRECISIONS))
        _one_of("-p", self.precision, _ALL_PRECISIONS)
        if self.precision not in PRECISIONS[self.provider]:
            raise ExportError(
                "This precision does not run on this execution provider.",
                where="-p and -e",
                found=f"-p {self.precision} -e {self.provider}",
                accepted="; ".join(f"-e {p} with -p {' or '.join(PRECISIONS[p])}" for p in PRECISIONS),
                fix=f"Choose one of these pairs: {_WHY[self.provider]}.",
            )
        self._check_drafter()
        if self.use_paged_attention or self.drafter:
            self._check_packed()
        elif given := [name for name in PACKED_OPTIONS if getattr(self, name) is not None]:
            raise ExportError(
                "Options of the packed layout are given without it.",
                where=f"--extra_options {given[0]}",
                found=", ".join(given) + " without use_paged_attention=true",
                accepted="these options together with use_paged_attention=true",
                fix="Add use_paged_attention=true, or leave them out.",
            )

    def _check_drafter(self) -> None:
        paths = [name for name in DRAFTER_PATHS if getattr(self, name) is not None]
        if len(paths) > 1:
            raise ExportError(
                "More than one drafter is named.",
                where=f"--extra_options {' and '.join(paths)}",
                found=" ".join(f"{name}={getattr(self, name)}" for name in paths),
                accepted="one drafter beside a target",
                fix="Leave all but one out.",
            )
        if paths and self.use_paged_attention is False:
            raise ExportError(
                "A drafter needs the packed layout.",
                where="--extra_options use_paged_attention",
                found=f"use_paged_attention=false with {paths[0]}",
                accepted="true, or nothing: a drafter implies it",
                fix="Leave use_paged_attention out, or the drafter.",
            )
        other = [name for name in DRAFTER_OPTIONS if paths and _other_kind(name, paths[0])]
        given = [name for name in (other if paths else DRAFTER_OPTIONS) if getattr(self, name) is not None]
        if given:
            raise ExportError(
                "Options of a drafter are given without it.",
                where=f"--extra_options {given[0]}",
                found=", ".join(given) + (f" with {paths[0]}" if paths else " without a drafter"),
                accepted="dflash2_* with a DFlash 2 drafter, dspark_* with a DSpark drafter",
                fix=f"Add {given[0].split('_')[0]}_path=FOLDER, or leave {', '.join(given)} out.",
            )

    def _check_packed(self) -> None:
        if self.precision == "fp32" or self.provider == "cpu":
            raise ExportError(
                "The packed layout does not run in this precision or on this provider.",
                where=f"--extra_options {self.drafter_option if self.drafter else 'use_paged_attention=true'}",
                found=f"-p {self.precision} -e {self.provider}",
                accepted="-p bf16 or fp16 with -e cuda",
                fix="Choose one of these, or export the dense layout, without use_paged_attention and drafter.",
            )
        if self.num_blocks is not None and self.gpu_utilization_factor is not None:
            raise ExportError(
                "Two options size the same cache.",
                where="--extra_options num_blocks and gpu_utilization_factor",
                found=f"num_blocks={self.num_blocks} gpu_utilization_factor={self.gpu_utilization_factor:g}",
                accepted="one of the two",
                fix="Leave one out: num_blocks is exact, gpu_utilization_factor goes by the GPU's memory.",
            )
        drafts, capacity = self.max_draft_tokens or 0, self.state_update_capacity or 0
        if self.max_scheduled_tokens is not None and self.max_scheduled_tokens <= drafts:
            raise ExportError(
                "A step has no room for the drafts of one request.",
                where=f"--extra_options max_scheduled_tokens={self.max_scheduled_tokens}",
                found=f"{self.max_scheduled_tokens} tokens in a step, and {drafts} drafts after the newest token",
                accepted=f"{drafts + 1} or more, for each request that runs at once",
                fix="Raise it, leave it out, or ask for fewer drafts with max_draft_tokens.",
            )
        if drafts > capacity and not (self.drafter and self.state_update_capacity is None):
            raise ExportError(
                "More drafts are asked for than the linear layers could take back.",
                where="--extra_options max_draft_tokens and state_update_capacity",
                found=f"max_draft_tokens={drafts} state_update_capacity={capacity}",
                accepted="at most state_update_capacity drafts",
                fix=f"Add state_update_capacity={drafts}, or ask for fewer drafts.",
            )


def _other_kind(option: str, path: str) -> bool:
    """Whether an option is of another kind of drafter than the one that the path's option takes."""
    return path != DRAFTER_PATHS[0] and option.split("_")[0] not in ("drafter", path.split("_")[0])


def _one_of(flag: str, value: str, accepted: Sequence[str]) -> None:
    if value not in accepted:
        raise ExportError(
            f"{flag} has a value that is not supported.",
            where=flag,
            found=repr(value),
            accepted=" or ".join(accepted),
            fix=did_you_mean(value, accepted) or f"Choose one of these for {flag}.",
        )
