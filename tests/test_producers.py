"""Each producer's own drafters, exported, against what the producer's own code computes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from draftsmith.validation.draft_session import DraftSession, Turn
from draftsmith.validation.session import Array
from draftsmith.validation.widen import widen
from draftsmith.verify.folder import open_export
from tests.producers import Case, cases, taps, target, text
from tests.refusals import refused
from tests.runtime import export

LIMIT = 2e-5  # relative to the largest value above 1

# What contradicts itself, and is refused: is_causal: false beside dflash_config.causal: true.
REFUSED = "automodel-0.7.0/jetspec_qwenpath"

# Trained with another rotary base (10000) than the file has.
OTHER_BASE = "modelopt-0.47.0/dflash_plain"

# Trained with one bound for all rows of a block, which reaches further back than the window that is served. Beyond it
# the last row of a block sees as many positions fewer as a block has rows.
ONE_BOUND = (
    "speculators-0.9.0/dflash2_default",
    "speculators-0.9.0/dspark_default",
    "speculators-0.9.0/dflash_sliding_default",
)
WINDOW = 40

SAME = [name for name in cases() if name not in (REFUSED, OTHER_BASE, *ONE_BOUND)]


@dataclass
class Errors:
    """Of one context: the largest differences, and candidates and drafts that differ."""

    hidden: float
    scores: float
    candidates: int
    drafts: int

    @property
    def none(self) -> bool:
        """Whether the producer's code gives the same."""
        return max(self.hidden, self.scores) < LIMIT and not self.candidates and not self.drafts


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return target(tmp_path_factory.mktemp("producers") / "target")


def exported(folder: Path, base: Path, case: Case, *options: str) -> Path:
    given = (f"drafter_path={case.write(folder / 'd')}", *case.options, *options)
    return export(base, folder / "out", *given, precision="bf16", provider="cuda")


def errors(folder: Path, base: Path, case: Case, *options: str) -> dict[int, Errors]:
    """Draft after each context in turn with the exported graph, whose cache grows, or goes round, between them."""
    out = exported(folder, base, case, *options)
    widen(out, folder / "low")
    drafter = open_export(out).drafter
    assert drafter is not None
    path, hidden = with_hidden(folder / "low" / drafter.path.name)
    window = drafter.section.get("sliding_window", -1)
    session = DraftSession(path, 1, drafter.section["block_size"], case.mask, window if window > 0 else None)
    found, done = {}, 0
    for context in case.contexts:
        (result,) = session([Turn(taps(context)[done:], text()[context])])
        assert result is not None
        found[context] = compared(case, context, session.results[hidden], *result)
        done = context
    return found


def with_hidden(path: Path) -> tuple[Path, str]:
    """The lowered graph with what its head reads as one more output."""
    model = ir.load(path)
    (head,) = (node for node in model.graph if node.op_type == "Gemm" and feeds_top_k(node))
    value = head.inputs[0]
    assert value is not None
    value.type = ir.TensorType(ir.DataType.FLOAT)
    model.graph.outputs.append(value)
    ir.save(model, path.with_name("probed.onnx"))
    return path.with_name("probed.onnx"), str(value.name)


def feeds_top_k(node: ir.Node) -> bool:
    users = node.successors()
    return any(user.op_type == "TopK" or (user.op_type == "Cast" and feeds_top_k(user)) for user in users)


def compared(case: Case, context: int, hidden: Array, ids: Array, scores: Array) -> Errors:
    wanted = {part: case.expected(context, part) for part in ("hidden", "ids", "scores", "path")}
    assert ids.shape == wanted["ids"].shape and np.isfinite(scores).all()
    rows = relative(hidden.reshape(-1, hidden.shape[-1])[-len(ids) :], wanted["hidden"])
    different = sum(len(set(row) - set(own)) for row, own in zip(wanted["ids"].tolist(), ids.tolist(), strict=True))
    if different:
        return Errors(rows, float("inf"), different, 0)
    aligned = in_order_of(wanted["ids"], ids, scores)
    error = relative(aligned, np.broadcast_to(wanted["scores"], scores.shape))
    return Errors(rows, error, 0, other_drafts(wanted["ids"], aligned, wanted["path"]))


def in_order_of(wanted: Array, ids: Array, scores: Array) -> Array:
    """The scores as if candidates stood in the order that is wanted. Of equally good ones either may stand first."""
    order = np.argsort(ids, axis=-1)[np.arange(len(ids))[:, None], np.argsort(np.argsort(wanted, axis=-1), axis=-1)]
    previous = np.concatenate([np.arange(ids.shape[1])[None], order[:-1]])
    return scores[np.arange(len(ids))[:, None, None], previous[:, :, None], order[:, None, :]]


def other_drafts(ids: Array, scores: Array, path: Array) -> int:
    """How many drafts are not the producer's.

    A DSpark producer walks over the whole vocabulary, the runtime over the candidates: they part where the producer
    takes a token that is none of these.
    """
    previous, different = 0, 0
    for row, draft in enumerate(path):
        if draft not in ids[row]:
            break
        previous = int(scores[row, previous].argmax())
        different += int(ids[row, previous] != draft)
    return different


def relative(got: Array, wanted: Array) -> float:
    return float(np.abs(got - wanted).max() / max(1.0, np.abs(wanted).max()))


def test_there_are_37() -> None:
    assert len(cases()) == 37 and len(SAME) == 32


@pytest.mark.parametrize("name", SAME)
def test_the_graph_computes_what_the_producer_does(tmp_path: Path, base: Path, name: str) -> None:
    for context, found in errors(tmp_path, base, cases()[name]).items():
        assert found.none, (context, found)


@pytest.mark.parametrize("name", ONE_BOUND)
def test_one_bound_for_a_block(tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """The same while the context is shorter than the window; beyond it another one, as the note says."""
    found = errors(tmp_path, base, cases()[name])
    block = 8
    assert all(found[context].none for context in found if context + block <= WINDOW)
    assert all(found[context].hidden > LIMIT for context in found if context > WINDOW)
    assert "one bound, 40 positions before the anchor" in capsys.readouterr().out


def test_a_base_that_was_not_trained_with(tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Only the option makes the graph the producer's own; the note names it."""
    case = cases()[OTHER_BASE]
    found = errors(tmp_path / "file", base, case)
    assert all(errors.hidden > 0.01 for context, errors in found.items() if context > 1)
    assert "drafter_rope_theta" in capsys.readouterr().out
    assert all(e.none for e in errors(tmp_path / "trained", base, case, "drafter_rope_theta=10000").values())


def test_what_contradicts_itself(tmp_path: Path, base: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = cases()[REFUSED]
    drafter = case.write(tmp_path / "d")
    arguments = ["-i", base, "-o", tmp_path / "out", "-p", "bf16", "-e", "cuda"]
    message = refused(capsys, *arguments, "--extra_options", f"drafter_path={drafter}")
    assert "dflash_config.causal" in message and "is_causal" in message and "false and true" in message
