"""The rotary embedding's configuration: plain, or stretched by YaRN. What is ambiguous is refused."""

from __future__ import annotations

from onnxkit.errors import ExportError, did_you_mean
from onnxkit.json_object import JsonObject, disagreement
from onnxkit.rotary import BETA_FAST, BETA_SLOW, Rotary, Yarn, yarn_attention_factor
from onnxkit.weights.limits import LONGEST_CONTEXT

DEFAULT, YARN = "default", "yarn"

# Where the keys are: the current home and the older one. Some may be beside these, in the configuration itself.
_HOMES = ("rope_parameters", "rope_scaling")

# Widths of heads, and of their rotated parts, are multiples of this: GroupQueryAttention requires it when a graph runs,
# on any provider, and PagedAttention on CUDA requires it of the rotated part.
_STEP = 16

_ORIGINAL = "original_max_position_embeddings"
_COMMON_KEYS = ("rope_type", "type", "rope_theta", "partial_rotary_factor", "mrope_section", "mrope_interleaved")
_SCALES = ("mscale", "mscale_all_dim")
_YARN_KEYS = ("factor", _ORIGINAL, "attention_factor", "beta_fast", "beta_slow", *_SCALES, "truncate")


def read_rotary(text: JsonObject, head_dim: int, *, partial: bool = True) -> Rotary:
    """Read the rotary embedding of a text configuration. Its keys have had three homes, which must not disagree; a key
    missing from one of them is not a disagreement, since writers that mirror one home to another leave keys out.

    Args:
        text: The configuration.
        head_dim: Channels in a head.
        partial: Whether part of the head may be left unrotated. A drafter rotates whole heads: if its configuration has
            keys for a part, they were copied from the target's. Its max_position_embeddings may be copied as well, so
            YaRN need not reach it there.

    Raises:
        ExportError: A key is missing or has a wrong value, places disagree, or the kind of embedding is not built.
    """
    sections = [section for key in _HOMES if key in text and (section := text.section(key)).data]
    kind = _one_kind(sections)
    for section in sections:
        _refuse_unknown(section, kind == YARN)
    homes = [*sections, text]
    theta = _one_value(homes, "rope_theta", "a number above 0, the rotary base")
    yarn = _yarn(_Merged(sections), text, theta, reached=partial) if kind == YARN else None
    if head_dim % _STEP:
        raise _width_error(text, head_dim)
    if not partial:
        return Rotary(theta, head_dim, yarn)
    factor = _one_value(homes, "partial_rotary_factor", "the share of a head that is rotated, above 0 and at most 1", 1)
    dim = round(head_dim * factor)
    if dim < _STEP or dim % _STEP or abs(dim - head_dim * factor) > 1e-6:
        home = next((home for home in homes if "partial_rotary_factor" in home), homes[0])
        accepted = (
            f"a share of head_dim ({head_dim}) that rotates a multiple of {_STEP} channels, which the operators take"
        )
        raise home.error("partial_rotary_factor", accepted, "Use a release with other heads.")
    for home in homes:
        section = home.integers("mrope_section", default=None)
        if section is not None and (len(section) != 3 or sum(section) * 2 != dim):
            raise home.error("mrope_section", f"three numbers whose sum is half of the rotated part ({dim // 2})")
    return Rotary(theta, dim, yarn)


def _width_error(text: JsonObject, head_dim: int) -> ExportError:
    accepted = f"heads whose width is a multiple of {_STEP}, which the attention operators take"
    if "head_dim" in text:
        return text.error("head_dim", accepted, "Use a release with other heads.")
    return ExportError(
        "A value is not acceptable.",
        where=f"{text.place('hidden_size')} and num_attention_heads",
        found=f"heads of {head_dim} channels",
        accepted=accepted,
        fix="Use a release with other heads.",
    )


class _Merged(JsonObject):
    """Several homes as one object; each message names the home that a value came from.

    transformers reads only one of two homes, and other programs the other: so a key in both must have one value.
    """

    def __init__(self, homes: list[JsonObject]) -> None:
        super().__init__({}, homes[0].where)
        self.origins: dict[str, JsonObject] = {}
        for home in homes:
            for key, value in home.data.items():
                if value is None or key in ("rope_type", "type"):
                    continue
                first = self.origins.setdefault(key, home)
                if self.data.setdefault(key, value) != value:
                    raise disagreement(first.place(key), home.place(key), self.data[key], value)

    def place(self, key: str) -> str:
        """Where the key is in the first home that has it."""
        return self.origins[key].place(key) if key in self.origins else super().place(key)


def _one_kind(sections: list[JsonObject]) -> str:
    """The kind of embedding that the homes name; a home that names none is ignored."""
    named = [(section, kind) for section in sections if (kind := _kind(section))]
    for section, kind in named[1:]:
        if kind != named[0][1]:
            raise disagreement(named[0][0].place("rope_type"), section.place("rope_type"), named[0][1], kind)
    return named[0][1] if named else DEFAULT


def _kind(home: JsonObject) -> str | None:
    """The kind of embedding that a home names, if any. ``type`` is the older spelling of ``rope_type``."""
    spellings = [key for key in ("rope_type", "type") if key in home]
    kinds = [home.string(key) for key in spellings]
    for key, kind in zip(spellings, kinds, strict=True):
        if kind not in (DEFAULT, YARN):
            raise home.error(key, f"{DEFAULT} or {YARN}", "Export a release without this kind of scaling.")
    if len(set(kinds)) > 1:
        raise disagreement(home.place("rope_type"), home.place("type"), *kinds)
    return str(kinds[0]) if kinds else None


def _yarn(home: JsonObject, text: JsonObject, theta: float, *, reached: bool) -> Yarn:
    """What :class:`Yarn` needs, as transformers takes it from the configuration (its ``_compute_yarn_parameters``).

    ``reached`` says whether the stretched context must reach max_position_embeddings.
    """
    if theta <= 1:
        raise (home if "rope_theta" in home else text).error("rope_theta", f"a number above 1 (rope_type is {YARN})")
    factor = home.number("factor")
    if factor < 1:
        raise home.error("factor", "a number from 1: the multiple of the trained context")
    original = _original_length(home, text)
    beta_fast, beta_slow = home.number("beta_fast", default=BETA_FAST), home.number("beta_slow", default=BETA_SLOW)
    if beta_fast < beta_slow:
        key = "beta_fast" if "beta_fast" in home else "beta_slow"
        raise home.error(key, f"beta_fast ({beta_fast:g}) not below beta_slow ({beta_slow:g})")
    attention_factor = _attention_factor(home, factor)
    if factor * original > LONGEST_CONTEXT:
        raise home.error("factor", f"a stretched context of up to {LONGEST_CONTEXT} positions")
    yarn = Yarn(factor, original, attention_factor, beta_fast, beta_slow, home.boolean("truncate", default=True))
    longest = text.integer("max_position_embeddings")
    if reached and longest > yarn.length:
        raise text.error(
            "max_position_embeddings",
            f"at most {yarn.length}, which is factor ({factor:g}) times {_ORIGINAL} ({original})",
            "Lower max_position_embeddings, or raise factor.",
        )
    return yarn


def _original_length(home: JsonObject, text: JsonObject) -> int:
    """The trained context. If it is missing, transformers takes max_position_embeddings: a guess, since that may be
    the stretched one."""
    filled = [place for place in (home, text) if _ORIGINAL in place] or [home]
    values = [place.integer(_ORIGINAL) for place in filled]
    if values[0] != values[-1]:
        raise disagreement(home.place(_ORIGINAL), text.place(_ORIGINAL), *values)
    longest = text.integer("max_position_embeddings")
    if values[0] > longest:
        raise filled[0].error(_ORIGINAL, f"a whole number from 1 up to {longest} (max_position_embeddings)")
    return int(values[0])


def _attention_factor(home: JsonObject, factor: float) -> float:
    """The attention factor as written, else from the two scales, else YaRN's own."""
    scales = [home.number(key, default=None) for key in _SCALES]
    if scales.count(None) == 1:
        # transformers ignores a lone one; other programs do not.
        present, absent = _SCALES if scales[1] is None else _SCALES[::-1]
        raise home.error(absent, f"a number above 0, since {present} is there", f"Add {absent}, or remove {present}.")
    return float(home.number("attention_factor", default=yarn_attention_factor(factor, *scales)))


def _refuse_unknown(home: JsonObject, stretched: bool) -> None:
    """Refuse keys that no embedding has: a misspelt one would leave its default in force. YaRN's keys have no effect if
    another kind is named, and are ambiguous if none is."""
    named = stretched or "rope_type" in home or "type" in home
    known = (*_COMMON_KEYS, *(_YARN_KEYS if named else ()))
    for key in home.data:
        if key in home and key not in known:
            fix = f"Add rope_type, {DEFAULT} or {YARN}." if key in _YARN_KEYS else None
            raise home.error(key, ", ".join(known), fix or did_you_mean(key, known) or f"Remove {key}.")


def _one_value(homes: list[JsonObject], key: str, accepted: str, maximum: float = float("inf")) -> float:
    filled = [(home, home.number(key, maximum=maximum)) for home in homes if key in home]
    if not filled:
        raise homes[0].error(key, accepted)
    first, value = filled[0]
    for other, second in filled[1:]:
        if second != value:
            raise disagreement(first.place(key), other.place(key), f"{value:g}", f"{second:g}")
    return float(value)
