"""A page as a browser shows it, and the contrast of its colours."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


def luminance(colour: tuple[float, ...]) -> float:
    """The relative luminance of WCAG 2.2, of red, green and blue from 0 to 255."""
    linear = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """The contrast ratio of WCAG 2.2, from 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


# What a browser makes of a page in a frame: for each text its size on the screen, colour and ground, for each mark of a
# chart its colour and ground; how wide the page is; how long the tracks of charts that stand side by side are.
PROBE = """<!doctype html><body><script>
const frame = document.createElement("iframe");
frame.style = "border: 0; width: WIDTHpx; height: 6000px";
frame.onload = () => {
  const page = frame.contentDocument, view = frame.contentWindow, root = page.documentElement;
  const parsed = colour => {
    const [r, g, b, a = 1] = colour.match(/[\\d.]+/g).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], [R, G, B]) => [r, g, b].map((c, i) => Math.round(c * a + [R, G, B][i] * (1 - a)));
  const written = parts => `rgb(${parts.slice(0, 3).join(", ")})`;
  const ground = element => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) {
      layers.unshift(parsed(view.getComputedStyle(e).backgroundColor));
      if (layers[0][3] === 1) break;
    }
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const pair = (colour, element) => [written(over(parsed(colour), ground(element))), written(ground(element))];
  const texts = [];
  const walker = page.createTreeWalker(page.body, view.NodeFilter.SHOW_TEXT);
  for (let node; (node = walker.nextNode());) {
    const range = page.createRange();
    range.selectNodeContents(node);
    if (!node.textContent.trim() || !range.getBoundingClientRect().width) continue;
    if (!node.parentElement.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const element = node.parentElement, style = view.getComputedStyle(element);
    const box = element.ownerSVGElement, scale = box ? element.getScreenCTM().a : 1;
    texts.push([node.textContent.trim().slice(0, 30), parseFloat(style.fontSize) * scale,
      ...pair(box ? style.fill : style.color, element)]);
  }
  const marks = [...page.querySelectorAll(".bars rect, figure rect:not(.gap)")]
    .filter(e => e.getBoundingClientRect().width > 0)
    .map(e => [e.getAttribute("class"), ...pair(view.getComputedStyle(e).fill, e)]);
  for (const cell of page.querySelectorAll("td.here, td.wrong"))
    marks.push([cell.classList[1], ...pair(view.getComputedStyle(cell).boxShadow.match(/rgb\\([^)]*\\)/)[0], cell)]);
  const tracks = [...page.querySelectorAll(".figures")].map(figures =>
    [...figures.querySelectorAll(".bars")].map(t => t.querySelector(".track svg").getBoundingClientRect().width));
  const result = { scroll: root.scrollWidth, client: root.clientWidth, texts, marks, tracks };
  document.body.append("RESULT" + btoa(unescape(encodeURIComponent(JSON.stringify(result)))) + "END");
};
frame.src = "PAGE";
document.body.append(frame);
</script></body>"""


def look(page: Path, width: int, dark: bool) -> Any:
    """What the probe finds on a page, in a window of that many pixels, in light or in dark mode."""
    probe = page.resolve().with_name(f"probe-{page.stem}-{width}.html")
    probe.write_text(PROBE.replace("WIDTH", str(width)).replace("PAGE", page.name))
    # The flag makes files of one folder one origin, so that the probe may look into the frame.
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--virtual-time-budget=3000", "--dump-dom"]
    done = subprocess.run([*command, probe.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    probe.unlink()
    found = re.search(r"RESULT([A-Za-z0-9+/=]+)END", done.stdout)
    assert found, done.stdout[:500]
    return json.loads(base64.b64decode(found[1]))


def rgb(colour: str) -> tuple[float, ...]:
    found = re.fullmatch(r"rgb\((\d+), (\d+), (\d+)\)", colour)
    assert found, f"{colour}: not a plain colour"
    return tuple(map(float, found.groups()))
