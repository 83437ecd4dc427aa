"""The docs: every file that is named exists, every page is reached, and the site is built and can be read."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, contrast, look, rgb

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))])
FOLDERS = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"site"}
LINK = re.compile(r"\]\(([^)\s]+)\)")

needs_mkdocs = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("material") is None,
    reason="no mkdocs-material: the extra docs",
)


def named_files(text: str) -> Iterator[str]:
    """Paths into the repository that a page names, in code and in prose."""
    for path in re.findall(r"(?<![\w/.\-])((?:[\w.\-]+/)+[\w.\-]*)", re.sub(r"https?://\S+", "", text)):
        if path.split("/")[0] in FOLDERS:
            yield path.rstrip(".")
    for module in re.findall(r"python -m ([\w.]+)", text):
        if module.split(".")[0] in FOLDERS:
            yield module.replace(".", "/")


def exists(path: str) -> bool:
    return (ROOT / path).exists() or (ROOT / f"{path}.py").exists()


def test_names_of_files_are_found() -> None:
    text = "`scripts/gone.py`, scripts/test.sh. `docs/` https://x.org/docs/y `python -m scripts.no`, out/model.onnx"
    assert list(named_files(text)) == ["scripts/gone.py", "scripts/test.sh", "docs/", "scripts/no"]
    assert [path for path in named_files(text) if not exists(path)] == ["scripts/gone.py", "scripts/no"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert [path for path in named_files(text) if not exists(path)] == []
    links = [link.split("#")[0] for link in LINK.findall(text) if not re.match(r"https?:|#|mailto:", link)]
    assert [link for link in links if not (page.parent / link).exists()] == []


def linked(page: Path) -> set[Path]:
    """The pages that a page links to."""
    links = LINK.findall(page.read_text(encoding="utf-8"))
    return {(page.parent / link.split("#")[0]).resolve() for link in links if link.split("#")[0].endswith(".md")}


def test_pages_are_linked_to_each_other() -> None:
    """The index and the README reach every page; every page leads on to another."""
    assert {page.name for page in DOCS.glob("*.md")} - {page.name for page in linked(DOCS / "index.md")} == {"index.md"}
    assert DOCS / "index.md" in linked(ROOT / "README.md")
    assert [page.name for page in DOCS.glob("*.md") if not linked(page) - {page}] == []


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site, strictly, from the docs of a folder."""
    config = site.parent / "mkdocs.yml"
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    text = text.replace("docs_dir: docs", f"docs_dir: {docs}").replace(
        "- scripts/site_pages.py", f"- {ROOT}/scripts/site_pages.py"
    )
    config.write_text(text.replace("site_dir: site", f"site_dir: {site}"), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "site"
    done = build(DOCS, folder)
    assert done.returncode == 0, done.stderr
    return folder


@needs_mkdocs
def test_the_site_has_every_page(site: Path) -> None:
    pages = {path.stem for path in DOCS.glob("*.md")} | {"readme", "contributing", "changelog"}
    assert {path.stem for path in site.glob("*.html")} - {"404"} == pages
    loaded = re.findall(
        r"<(?:script|link|img)[^>]*(?:src|href)=\"?(https?:[^\" >]+)", (site / "index.html").read_text()
    )
    assert [address for address in loaded if "canonical" not in address] == []  # it is read without a network, too


@needs_mkdocs
@pytest.mark.parametrize("bad", ["[gone](gone.md)", "[gone](verify.md#no-such-heading)", "![gone](assets/gone.svg)"])
def test_a_link_that_leads_nowhere_fails_the_build(tmp_path: Path, bad: str) -> None:
    docs = shutil.copytree(DOCS, tmp_path / "docs")
    (docs / "verify.md").write_text(f"{(docs / 'verify.md').read_text()}\n{bad}\n")
    done = build(docs, tmp_path / "site")
    assert done.returncode == 1 and ("gone" in done.stderr or "no-such-heading" in done.stderr)


@needs_mkdocs
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium; scripts/test.sh installs it")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("page", ["readme", "verify"])
def test_the_site_can_be_read(site: Path, page: str, width: int, dark: bool) -> None:
    found = look(site / f"{page}.html", width, dark)
    assert found["scroll"] <= width and len(found["texts"]) > 100
    for text, size, colour, ground in found["texts"]:
        assert size >= 12, f"{text}: {size} px"
        assert contrast(rgb(colour), rgb(ground)) >= 4.5, f"{text}: {colour} on {ground}"
