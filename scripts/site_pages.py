"""A hook of mkdocs: the files at the root of the repository that are pages of the site, too."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "readme.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add them, their links as they are from docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=from_docs((ROOT / source).read_text(encoding="utf-8"))))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links out of docs/ lead to these pages."""
    for source, name in PAGES.items():
        markdown = markdown.replace(f"](../{source}", f"]({name}")
    return markdown


def from_docs(text: str) -> str:
    """A page of the root, its links to other pages as a page in docs/ has them."""
    for source, page in PAGES.items():
        text = text.replace(f"]({source}", f"]({page}")
    return re.sub(r"\]\(docs/", "](", text)
