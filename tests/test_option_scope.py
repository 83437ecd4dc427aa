"""Where an option means something is a part of the table: given elsewhere, each is refused, whatever it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from builder.option import ANY_DRAFTER, Option
from builder.option_table import OPTIONS
from builder.options import BuildOptions
from onnxkit.errors import ExportError

PACKED = [option for option in OPTIONS if option.scope.packed]
OF_DRAFTERS = [option for option in OPTIONS if option.scope.kinds]
FOLDERS = [option for option in OPTIONS if option.takes]
BOUND = [option for option in OPTIONS if option.scope.precisions]


def request(**options: Any) -> BuildOptions:
    base: dict[str, Any] = {"output": Path("o"), "precision": "bf16", "provider": "cuda", "input": Path("i")}
    return BuildOptions(**base | options)


def named(option: Option) -> str:
    return option.name


def test_the_table_has_all_scopes() -> None:
    assert len(PACKED) == 10 and len(OF_DRAFTERS) == 6 and len(FOLDERS) == 3 and len(BOUND) == 4


@pytest.mark.parametrize("option", PACKED, ids=named)
def test_an_option_of_the_packed_layout(option: Option) -> None:
    with pytest.raises(ExportError, match=f"{option.name} without use_paged_attention=true"):
        request(**{option.name: 1})
    room = {"state_update_capacity": 1, "max_draft_tokens": 1, option.name: 2 if "scheduled" in option.name else 1}
    assert request(use_paged_attention=True, **room).given


@pytest.mark.parametrize("folder", FOLDERS, ids=named)
@pytest.mark.parametrize("option", OF_DRAFTERS, ids=named)
def test_an_option_of_a_kind_of_drafter(option: Option, folder: Option) -> None:
    with pytest.raises(ExportError, match=f"{option.name} without a drafter"):
        request(use_paged_attention=True, **{option.name: 2})  # not even in the layout of drafters
    both: dict[str, Any] = {folder.name: Path("d"), option.name: 2}
    if set(option.scope.kinds) & set(folder.takes):
        assert request(**both).given == tuple(o for o in OPTIONS if o in (option, folder))
        return
    with pytest.raises(ExportError, match=f"{option.name} with {folder.name}") as caught:
        request(**both)
    fitting = [other.name for other in FOLDERS if set(other.takes) == set(option.scope.kinds)]
    assert f"Add {fitting[0]}=FOLDER" in str(caught.value)


@pytest.mark.parametrize(("precision", "provider"), [("fp32", "cpu")])
@pytest.mark.parametrize("option", BOUND, ids=named)
def test_an_option_of_some_providers(option: Option, precision: str, provider: str) -> None:
    value = Path("d") if option.takes else True
    with pytest.raises(ExportError, match="-p bf16 or fp16 with -e cuda"):
        request(precision=precision, provider=provider, **{option.name: value})
    assert request(**{option.name: value}).packed


def test_help_says_the_scope() -> None:
    for option in OPTIONS:
        assert option.help.startswith("packed: ") == option.scope.packed
        assert option.help.startswith("with a ") == bool(option.scope.kinds)
        assert ("-e cuda only" in option.help) == bool(option.scope.providers)
    titles = {option.scope.kinds: option.help.split(":")[0] for option in OF_DRAFTERS}
    assert titles[ANY_DRAFTER] == "with a drafter" and len(titles) == 3
    assert "with a DFlash or DFlash 2 drafter" in titles.values() and "with a DSpark drafter" in titles.values()
