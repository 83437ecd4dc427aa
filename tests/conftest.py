"""Fixtures that many tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftsmith.validation.reference import load_reference
from tests.checkpoints import TINY
from tests.runtime import export


@pytest.fixture(scope="session")
def reference() -> Any:
    """transformers' model of the bundled checkpoint, float32."""
    return load_reference(TINY)


@pytest.fixture(scope="session")
def tiny_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled checkpoint, exported as the README does it."""
    return export(TINY, tmp_path_factory.mktemp("exports") / "tiny")


@pytest.fixture(scope="session")
def full_export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled checkpoint with logits of every token and hidden states."""
    folder = tmp_path_factory.mktemp("exports") / "full"
    return export(TINY, folder, "prune_lm_head=false", "include_hidden_states=true")
