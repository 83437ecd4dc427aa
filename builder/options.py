"""A whole request, checked before anything else happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.hub_name import HubName
from builder.option import Option, any_of, drafter_of, written
from builder.option_table import OPTIONS, ExtraOptions, drafter_setting
from builder.peer_options import advice
from onnxkit.errors import ExportError, did_you_mean

# Execution providers, the precisions that their kernels have for these graphs, and why they have no other.
PRECISIONS = {"cpu": ("fp32",), "cuda": ("bf16", "fp16")}
_WHY = {
    "cpu": "most operators have no 16-bit kernel on the CPU",
    "cuda": "onnxruntime-gpu has no float32 attention, and would move the whole cache to the CPU for each token",
}
_ALL_PRECISIONS = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, kw_only=True)
class BuildOptions(ExtraOptions):
    """A whole request: what the user asked for, nothing filled in.

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

    @property
    def given(self) -> tuple[Option, ...]:
        """The options that are given, in the table's order."""
        return tuple(option for option in OPTIONS if getattr(self, option.name) != option.unset)

    @property
    def drafter_option(self) -> Option | None:
        """The option that names the drafter's folder."""
        return next((option for option in self.given if option.takes), None)

    @property
    def drafter(self) -> Path | HubName | None:
        """The drafter's folder, or its repository on the Hub."""
        option = self.drafter_option
        return getattr(self, option.name) if option else None

    def of_drafter(self, what: str, kind: str) -> Any:
        """The value given for a property of drafters of a kind, such as ``top_k``; None if it was not given."""
        return getattr(self, drafter_setting(what, kind).name)

    @property
    def packed(self) -> bool:
        """Whether the layout is the Engine's: it is asked for, or a drafter implies it."""
        return bool(self.use_paged_attention or self.drafter)

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
        self._check_scopes()
        if self.packed:
            self._check_cache()
            check_step(self.max_scheduled_tokens, self.max_draft_tokens or 0)
            self._check_state_updates()

    def _check_drafter(self) -> None:
        paths = [option.name for option in self.given if option.takes]
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

    def _check_scopes(self) -> None:
        """Check that each option means something here."""
        path = self.drafter_option
        taken = set(path.takes) if path else set()
        strange = [option for option in self.given if option.scope.kinds and not taken & set(option.scope.kinds)]
        if strange:
            raise _without_its_drafter(strange, path)
        for option in self.given:
            if getattr(self, option.name) and not option.scope.runs(self.precision, self.provider):
                raise ExportError(
                    "The packed layout does not run in this precision or on this provider.",
                    where=f"--extra_options {option.name}={written(getattr(self, option.name))}",
                    found=f"-p {self.precision} -e {self.provider}",
                    accepted=option.scope.pairs,
                    fix="Choose one of these, or export the dense layout, without use_paged_attention and drafter.",
                )
        packed = [option.name for option in self.given if option.scope.packed]
        if packed and not self.packed:
            raise ExportError(
                "Options of the packed layout are given without it.",
                where=f"--extra_options {packed[0]}",
                found=", ".join(packed) + " without use_paged_attention=true",
                accepted="these options together with use_paged_attention=true",
                fix="Add use_paged_attention=true, or leave them out.",
            )

    def _check_cache(self) -> None:
        if self.num_blocks is not None and self.gpu_utilization_factor is not None:
            raise ExportError(
                "Two options size the same cache.",
                where="--extra_options num_blocks and gpu_utilization_factor",
                found=f"num_blocks={self.num_blocks} gpu_utilization_factor={self.gpu_utilization_factor:g}",
                accepted="one of the two",
                fix="Leave one out: num_blocks is exact, gpu_utilization_factor goes by the GPU's memory.",
            )

    def _check_state_updates(self) -> None:
        drafts, capacity = self.max_draft_tokens or 0, self.state_update_capacity or 0
        if drafts > capacity and not (self.drafter and self.state_update_capacity is None):
            raise ExportError(
                "More drafts are asked for than the linear layers could take back.",
                where="--extra_options max_draft_tokens and state_update_capacity",
                found=f"max_draft_tokens={drafts} state_update_capacity={capacity}",
                accepted="at most state_update_capacity drafts",
                fix=f"Add state_update_capacity={drafts}, or ask for fewer drafts.",
            )


def check_step(scheduled: int | None, drafts: int) -> None:
    """Check that a step has room for the newest token of a request and all its drafts.

    Raises:
        ExportError: It does not; the Engine would silently draft less.
    """
    if scheduled is not None and scheduled <= drafts:
        raise ExportError(
            "A step has no room for the drafts of one request.",
            where=f"--extra_options max_scheduled_tokens={scheduled}",
            found=f"{scheduled} tokens in a step, and {drafts} drafts after the newest token",
            accepted=f"{drafts + 1} or more, for each request that runs at once",
            fix="Raise it, leave it out, or ask for fewer drafts with max_draft_tokens.",
        )


def _without_its_drafter(strange: list[Option], path: Option | None) -> ExportError:
    """Refuse options of a drafter, or of a kind of drafter, that the request does not have."""
    names, kinds = ", ".join(option.name for option in strange), strange[0].scope.kinds
    fitting = [option.name for option in OPTIONS if option.takes and set(option.takes) <= set(kinds)]
    beside = f" with {path.name}" if path else " without a drafter"
    return ExportError(
        "Options of a drafter are given without it.",
        where=f"--extra_options {strange[0].name}",
        found=f"{names}{beside}",
        accepted=f"{strange[0].name} with {drafter_of(kinds)}",
        fix=f"Add {any_of([f'{name}=FOLDER' for name in fitting])}, or leave {names} out.",
    )


def _one_of(flag: str, value: str, accepted: Sequence[str]) -> None:
    if value not in accepted:
        raise ExportError(
            f"{flag} has a value that is not supported.",
            where=flag,
            found=repr(value),
            accepted=" or ".join(accepted),
            fix=advice(flag, value, accepted) or did_you_mean(value, accepted) or f"Choose one of these for {flag}.",
        )
