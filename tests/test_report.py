"""The report: one file that needs no network, and fits a wide screen and a narrow one in a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest

from draftsmith.report.memory import plan_of, weights_of
from draftsmith.report.page import page
from draftsmith.verify.checks import Results, Worst
from draftsmith.verify.folder import ExportFolder, open_export
from tests.faults.trying import PAIR
from tests.runtime import export

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


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
    results.figures["taps"] = [{"tap": tap, "distances": distances, "nearest": 2} for tap in (2, 4, 6)]
    results.figures["ranges"] = [("embedding", 0.2), ("layer 0", 23.0), ("head", 13.0)]
    results.figures["engine"] = {"proposed": 700, "accepted": 289, "histogram": [30, 20, 15, 9, 5, 8, 2, 20]}
    return page(opened, results)


def test_it_needs_no_network(html: str) -> None:
    assert not re.search(r"""(src|href|url)\s*[=(]\s*['"]?\s*(https?:)?//""", html) and "<script" not in html
    assert "<b>" not in html.replace(escape("<b>"), "") and "a &lt;folder&gt; &amp; its name" in html


def test_what_it_tells(html: str) -> None:
    for text in (
        "The export fails",
        "2 passed, 1 incomplete, 1 failed",
        '<span class="verdict failed">The export fails',
        "Largest values of the target",
        "3.0e-06 of 1e-05",
        "2.65 a round",
        "shared by both",
    ):
        assert text in html
    assert html.count('class="here"') == 1 and html.count('class="wrong"') == 2


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


PROBE = """<!doctype html><body><script>
const frame = document.createElement("iframe");
frame.style = "border: 0; width: WIDTHpx; height: 4000px";
frame.onload = () => {
  const page = frame.contentDocument, root = page.documentElement;
  const small = [...page.querySelectorAll("svg")].filter(svg => svg.getBoundingClientRect().width < 150).length;
  const count = page.querySelectorAll("svg").length;
  document.body.append(`RESULT ${root.scrollWidth} ${root.clientWidth} ${count} ${small}`);
};
frame.srcdoc = atob("PAGE");
document.body.append(frame);
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; scripts/test.sh installs it")
@pytest.mark.parametrize("width", [1280, 400])
def test_in_a_browser(tmp_path: Path, html: str, width: int) -> None:
    """Nothing is wider than the window, and no picture is too small to read."""
    import base64

    encoded = base64.b64encode(html.encode("ascii", "xmlcharrefreplace")).decode()
    probe = tmp_path / "probe.html"
    probe.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", encoded))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run([*command, probe.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r"RESULT (\d+) (\d+) (\d+) (\d+)", done.stdout)
    assert found, done.stdout[:500]
    scroll, client, pictures, small = map(int, found.groups())
    assert client == width and scroll <= client
    assert pictures == 5 and small == 0
