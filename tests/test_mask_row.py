"""A row of the drafter's own for the mask token, in ``mask_embedding.pt``."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from drafters.checkpoint.mask_row import MASK_FILE
from onnxkit.errors import ExportError
from onnxkit.weights.torch_file import read_torch_file
from tests.dialects import with_tables
from tests.drafters import alone, drafter
from tests.test_draft_beyond import folder_of, set_key
from tests.test_drafter_reading import message
from tests.test_drafters import LIMIT, THREE_STEPS, largest_error

ROW = torch.linspace(-1, 1, 128)


@pytest.mark.parametrize(
    "stored",
    [
        ROW,
        ROW[None],
        ROW.to(torch.bfloat16),
        {"mask_embedding": ROW},
        {"mask_token_id": 630, "embedding": ROW},
        torch.stack([ROW * 0, ROW])[1],
    ],
    ids=["row", "matrix", "bf16", "dictionary", "with its token", "a part of a storage"],
)
@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
def test_a_row_for_the_mask_token(tmp_path: Path, kind: str, stored: object) -> None:
    """Against torch's own reading of the file, and far from what a drafter without it gives."""
    folder = drafter(tmp_path / "d", kind)
    plain = alone(folder, tmp_path / "plain")
    torch.save(stored, folder / MASK_FILE)
    made = alone(folder, tmp_path / "out")
    assert largest_error(made, THREE_STEPS) < LIMIT
    assert made.path.read_bytes() != plain.path.read_bytes()
    assert any(MASK_FILE in note for note in made.config.notes)


def test_such_a_row_with_a_scale_and_tables(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "d", "dspark", with_tables, set_key(input_embedding_scale=3.0))
    torch.save(ROW, folder / MASK_FILE)
    assert largest_error(alone(folder, tmp_path / "out"), THREE_STEPS) < LIMIT


class Command:
    """Would run a command where a pickle is executed."""

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, ("touch /tmp/executed-by-a-pickle",)


def archive(path: Path, found: object) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(found, protocol=2))


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda path: torch.save(ROW[:64], path), "[64]"),
        (lambda path: torch.save(torch.stack([ROW, ROW]), path), "[2, 128]"),
        (lambda path: torch.save(ROW / 0, path), "infinities or NaN"),
        (lambda path: torch.save(ROW.to(torch.int64), path), "int64"),
        (lambda path: torch.save({"mask_token_id": 7, "embedding": ROW}, path), "token 7"),
        (lambda path: torch.save({"a": ROW, "b": ROW}, path), "2 tensors"),
        (lambda path: torch.save("a row", path), "one tensor"),
        (lambda path: torch.save(torch.stack([ROW, ROW], 1)[:, 0], path), "one after another"),
        (lambda path: torch.save(torch.nn.Linear(2, 2), path), "torch.nn.modules.linear.Linear"),
        (lambda path: archive(path, Command()), "posix.system"),
        (lambda path: archive(path, [eval]), "__builtin__.eval"),
        (lambda path: path.write_bytes(pickle.dumps(Command())), "zip"),
        (lambda path: path.write_bytes(b""), "zip"),
    ],
)
def test_files_that_are_no_such_row(tmp_path: Path, write: Callable[[Path], object], expected: str) -> None:
    folder = drafter(tmp_path, "dspark")
    write(folder / MASK_FILE)
    text = message(folder)
    assert MASK_FILE in text and expected in text and not Path("/tmp/executed-by-a-pickle").exists()


def test_a_damaged_file_is_a_message_whatever_its_damage(tmp_path: Path) -> None:
    """Each byte of a good file changed in turn: either the same values, or a message."""
    torch.save(ROW[:4].clone(), tmp_path / "good.pt")
    good = (tmp_path / "good.pt").read_bytes()
    path = tmp_path / "bad.pt"
    read = 0
    for place in range(0, len(good), 3):
        path.write_bytes(good[:place] + bytes([good[place] ^ 0x15]) + good[place + 1 :])
        try:
            read_torch_file(path)
            read += 1
        except ExportError as error:
            assert "bad.pt" in str(error)
    assert 0 < read < len(good) // 3
