"""What drafters are called: by their trainers, by the runtime, by options."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from builder.option_table import DRAFTER_PATHS, OPTIONS
from drafters.checkpoint.kinds import Family, RuntimeKind
from drafters.graph.build import DRAFTERS
from genai_config.sections import Model


def test_the_runtime_has_a_section_of_each_of_its_kinds() -> None:
    assert {field.name for field in dataclasses.fields(Model)} >= set(RuntimeKind)


def test_the_anchors_row_decides_what_runs_a_drafter() -> None:
    assert RuntimeKind.of(anchor_predicts=True) == "dspark" and RuntimeKind.of(anchor_predicts=False) == "dflash2"


def test_each_family_has_a_graph_and_options() -> None:
    assert {variant.family for variant in DRAFTERS} == set(Family)
    prefixes = {family.option_prefix for family in Family}
    assert set(DRAFTER_PATHS) == {"drafter_path", *(f"{prefix}_path" for prefix in prefixes)}
    for prefix in prefixes:
        assert {f"{prefix}_num_draft_tokens", f"{prefix}_top_k"} <= {option.name for option in OPTIONS}


def test_names_are_words_of_the_field() -> None:
    assert [str(family) for family in Family] == ["dflash", "dflash2", "dspark"]
    assert [family.label for family in Family] == ["DFlash", "DFlash 2", "DSpark"]


def test_labels_are_written_once() -> None:
    """As strings of their own they stand in the table alone."""
    root = Path(__file__).parent.parent
    found = [
        path
        for folder in ("drafters", "builder", "draftsmith")
        for path in (root / folder).rglob("*.py")
        if re.search(r'"(DFlash|DFlash 2|DSpark)"', path.read_text())
    ]
    assert found == [root / "drafters" / "checkpoint" / "kinds.py"]
