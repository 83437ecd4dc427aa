"""docs/tensors.md is what the tensor plans say, and the plans account for every stored tensor."""

from __future__ import annotations

from scripts.make_tensor_table import PAGE, page


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run: python -m scripts.make_tensor_table"
