"""The report: one file that needs no network, and fits a wide screen and a narrow one in a real browser."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path

import pytest

from draftsmith.report.memory import plan_of, weights_of
from draftsmith.report.page import page
from draftsmith.report.style import DARK, LIGHT
from draftsmith.verify.checks import Results, Worst
from draftsmith.verify.folder import ExportFolder, open_export
from onnxkit import __version__
from tests.browser import CHROMIUM, contrast, look, rgb
from tests.faults.trying import PAIR
from tests.runtime import export


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> ExportFolder:
    folder = tmp_path_factory.mktemp("report") / "a <folder> & its name"
    options = (f"drafter_path={PAIR / 'dflash2'}", "context_length=1024", "max_batch_size=4")
    return open_export(export(PAIR / "target", folder, *options, precision="bf16", provider="cuda"))


@pytest.fixture(scope="module")
def html(opened: ExportFolder) -> str:
    results = Results(lambda check: None)
    results.stated("files", "66 tensors lie inside the folder", [])
    results.compared("logits", "against transformers", Worst(3e-6), 1e-5)
    results.compared("scores <b>", "of\ncandidates & pairs", Worst(2e-3), 1e-5)
    results.incomplete("drafter scores", "a name that is long" + "_and_has_no_spaces" * 12)
    distances = [0.3, 0.2, 1e-7, 0.3, 0.4, 0.3, 0.2, 0.1, 0.4]
    names = ["the embedding", *(f"layer {i}" for i in range(7)), "the final norm"]
    taps = [{"tap": tap, "distances": distances, "nearest": 2, "names": names} for tap in (2, 4, 6)]
    results.figures["taps"] = taps
    results.figures["ranges"] = [("embedding", 0.2), ("layer 0", 23.0), ("head", 13.0)]
    results.figures["drafter ranges"] = [("layer 0", 46.0), ("head", 11.5)]
    results.figures["checkpoints"] = {"target": PAIR / "target", "drafter": None}
    results.figures["facts"] = [("commit", "0123abc <of others>")]
    results.figures["engine"] = {"proposed": 700, "accepted": 289, "histogram": [30, 20, 15, 9, 5, 8, 2, 20]}
    return page(opened, results, datetime(2026, 2, 3, 4, 5, tzinfo=UTC))


def test_it_needs_no_network(html: str) -> None:
    assert not re.search(r"""(src|href|url)\s*[=(]\s*['"]?\s*(https?:)?//""", html) and "<script" not in html
    assert "<b>" not in html.replace(escape("<b>"), "") and "a &lt;folder&gt; &amp; its name" in html


def test_what_it_tells(html: str) -> None:
    for text in (
        "The export fails",
        "2 passed, 1 incomplete, 1 failed",
        '<span class="verdict failed">The export fails',
        '<th scope="row">the final norm</th>',
        "Largest values",
        "3.0e-06 of 1e-05",
        "2.65 a round",
        "shared by both",
    ):
        assert text in html
    assert html.count('class="number here"') == 1 and html.count('class="number wrong"') == 2


def test_sizes(opened: ExportFolder) -> None:
    weights, plan = weights_of(opened), plan_of(opened)
    files = {path.name: path.stat().st_size for path in opened.path.iterdir()}
    assert weights.shared == 2 * 640 * 128 * 2
    assert abs(weights.target + weights.shared - files["model.onnx.data"]) < 9000  # some constants are in the graph
    assert abs(weights.drafter - files["dflash2.onnx.data"]) < 9000
    assert (plan.target_token, plan.drafter_token) == (1024, 512)
    assert (plan.requests, plan.context) == (4, 1024)
    assert plan.ring == 6 * 256 * 512  # 1024 + 8 + 2 * 8 positions in pages of 256, and one more
    linear = 4 * (4 * 48 * 32) + 2 * 3 * (2 * 2 * 32 + 4 * 48)  # float32 memory, bf16 inputs of the convolution
    assert plan.state == 6 * linear


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((0x76, 0x76, 0x76), (255, 255, 255)) == pytest.approx(4.54, abs=0.005)  # WCAG's own example


TEXTS, MARKS = ("ink", "mute", "good", "bad", "warn"), ("blue", "sand", "leaf", "good", "bad")


@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_the_colours_of_both_modes(colours: dict[str, str]) -> None:
    """Every text on every ground, every mark on both."""
    known = {name: tuple(bytes.fromhex(colour.removeprefix("#"))) for name, colour in colours.items()}
    assert set(known) == {*TEXTS, *MARKS, "paper", "soft", "rule"} and LIGHT.keys() == DARK.keys()
    for ground in ("paper", "soft"):
        assert min(contrast(known[text], known[ground]) for text in TEXTS) >= 4.5
        assert min(contrast(known[mark], known[ground]) for mark in MARKS) >= 3


def written(folder: Path, html: str) -> Path:
    page = folder / "report.html"
    page.write_text(html, encoding="utf-8")
    return page


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; scripts/test.sh installs it")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser(tmp_path: Path, html: str, width: int, dark: bool) -> None:
    """Nothing is wider than the window, all text is large enough and stands out, charts that are compared are alike."""
    found = look(written(tmp_path, html), width, dark)
    assert found["client"] == width and found["scroll"] <= width
    assert len(found["texts"]) > 100 and {kind for kind, *_ in found["marks"]} >= {"bar", "here", "wrong", "shared"}
    assert (rgb(found["texts"][0][3]) == (255, 255, 255)) is not dark
    for text, size, colour, ground in found["texts"]:
        assert size >= 12, f"{text}: {size} px"
        assert contrast(rgb(colour), rgb(ground)) >= 4.5, f"{text}: {colour} on {ground}"
    for kind, colour, ground in found["marks"]:
        assert contrast(rgb(colour), rgb(ground)) >= 3, f"{kind}: {colour} on {ground}"
    assert [len(set(tracks)) for tracks in found["tracks"]] == [1, 1] and min(min(found["tracks"])) > 120


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; scripts/test.sh installs it")
def test_the_browser_sees_what_is_too_small_and_too_faint(tmp_path: Path, html: str) -> None:
    faint = '<p style="color: #777; background: #888">faint</p>'
    small = '<svg viewBox="0 0 800 20" width="368"><text y="15" font-size="16" fill="#000">small</text></svg>'
    found = look(written(tmp_path, html.replace("</body>", f"{faint}{small}</body>")), 400, dark=False)
    sizes = {text: (size, contrast(rgb(colour), rgb(ground))) for text, size, colour, ground in found["texts"]}
    assert sizes["faint"][1] < 1.5 and sizes["small"][0] < 8


# --- one scale, and what was proved ---


def test_charts_that_are_compared_have_one_scale(html: str) -> None:
    """A bar is as long as its number says, whichever chart it is in."""
    rows = re.findall(r'<rect class="bar" x="0.00%" width="([\d.]+)%".*?<td class="number">([\d.]+)(%?)', html)
    values = [(float(length), float(value)) for length, value, percent in rows if not percent]
    shares = [(float(length), float(value)) for length, value, percent in rows if percent]
    assert len(values) == 5 and len(shares) == 15
    assert all(length == pytest.approx(100 * value / 46, abs=0.01) for length, value in values)
    assert all(length == pytest.approx(value, abs=0.5) for length, value in shares)


def test_the_date_the_names_and_the_versions(html: str) -> None:
    plain = dict(re.findall(r'<tr><th scope="row">([^<]*)</th><td>([^<]*)</td></tr>', html))
    assert plain["proved"] == "2026-02-03 04:05 UTC"
    assert plain["target checkpoint"] == "pair/target" and plain["drafter checkpoint"] == "not given (--drafter)"
    for package in ("onnx", "onnxruntime", "onnxruntime-genai", "torch", "transformers"):
        assert f"{package} {version(package)}" in plain["versions"]
    assert f"draftsmith {__version__}" in plain["versions"] and plain["layout"].endswith("bf16, cuda")
    assert plain["commit"] == "0123abc &lt;of others&gt;"
