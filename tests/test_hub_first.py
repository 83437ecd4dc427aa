"""The Hub is looked at before weights are downloaded; drafters and revisions from there; what is recorded of it."""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from builder.hub import DRAFTER_FILES, TARGET_FILES, Snapshot, check_room
from builder.hub_errors import Asked
from builder.hub_name import HubName, folder_or_hub, hub_name
from builder.hub_preview import lay_out
from builder.option_table import parse_extra_options
from builder.provenance import provenance, recorded_name
from drafters.checkpoint.reading import read_drafter
from onnxkit.errors import ExportError
from onnxkit.weights.checkpoint import Checkpoint
from tests.checkpoints import PREFIX, TINY, variant
from tests.dialects import with_reduced_vocabulary
from tests.drafters import drafter, top
from tests.hub import CLOSED, COMMIT, Served, cached, commit_of, digest, fetched, publish, run, running, sha256
from tests.nightly import sampled
from tests.tiny_drafter import Json, make_config, make_tensors, write
from tests.tiny_drafter import Tensors as Arrays

COMMAND = "import sys; from draftsmith.cli import main; sys.exit(main(sys.argv[1:]))"
LINES = f"import onnxkit.progress; onnxkit.progress.PERIOD = 0.001; {COMMAND}"
CPU, GPU = ("-p", "fp32", "-e", "cpu"), ("-p", "bf16", "-e", "cuda")
HEADERS = 128 << 10  # bytes of a file that are asked for first


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Served]:
    with running(tmp_path / "hub") as served:
        yield served


def export(tmp_path: Path, url: str, *arguments: object, code: str = COMMAND, **env: str) -> tuple[int, str, str]:
    command = ["export", *arguments, "-o", tmp_path / "out", "-c", tmp_path / "cache"]
    return run(tmp_path, url, *command, code=code, **env)


def refused(tmp_path: Path, url: str, *arguments: object, **env: str) -> str:
    status, out, message = export(tmp_path, url, *arguments, **env)
    assert status == 2 and out == "" and "Traceback" not in message, message
    assert not (tmp_path / "out").exists()
    for label in ("error: ", "where:", "found:", "accepted:", "to do:"):
        assert label in message
    assert "draftsmith-headers-" not in message  # where the headers lay is nobody's business
    return message


def manifest(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "out" / "draftsmith.json").read_text())
    return found


def publish_drafter(hub: Served, name: str = "org/drafter", **keys: object) -> Path:
    return drafter(hub.root / name, "dflash2", *([top(**keys)] if keys else []))


# --- refused first, as a folder is ---

BAD: dict[str, dict[str, Any]] = {
    "another architecture": {"config": lambda c: c.update(architectures=["LlamaForCausalLM"])},
    "a key out of range": {"config": lambda c: c["text_config"].update(num_attention_heads=7)},
    "a tensor too many": {
        "tensors": lambda t: t.update({f"{PREFIX}layers.0.extra.weight": t[f"{PREFIX}norm.weight"].clone()})
    },
    "a tensor too few": {"tensors": lambda t: t.pop(f"{PREFIX}layers.1.mlp.up_proj.weight"), "shards": 2},
}


@pytest.mark.parametrize("kind", sampled(BAD, 3))
def test_what_is_wrong_is_told_before_weights_come_and_as_of_a_folder(hub: Served, tmp_path: Path, kind: str) -> None:
    variant(hub.root / "org" / "tiny", **BAD[kind])
    first = refused(tmp_path, hub.url, "-m", "org/tiny", *CPU)
    assert hub.sent and all(sent <= HEADERS for sent in hub.sent.values())
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    snapshot = fetched(tmp_path, hub.url, "org/tiny", tmp_path / "cache")
    assert refused(tmp_path, CLOSED, "-i", snapshot, *CPU) == first


def test_a_damaged_header_is_told_first(hub: Served, tmp_path: Path) -> None:
    folder = publish(hub)
    with (folder / "model.safetensors").open("r+b") as file:
        file.write(struct.pack("<Q", 1 << 40))
    assert "damaged or cut short" in refused(tmp_path, hub.url, "-m", "org/tiny", *CPU)


def test_a_file_that_is_cut_short_is_told_first(hub: Served, tmp_path: Path) -> None:
    os.truncate(publish(hub) / "model.safetensors", 1_000_000)
    message = refused(tmp_path, hub.url, "-m", "org/tiny", *CPU)
    assert "cut short" in message and "1000000 bytes" in message and sum(hub.sent.values()) == HEADERS


def test_a_header_that_is_longer_than_the_first_request(hub: Served, tmp_path: Path) -> None:
    path = publish(hub) / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    text = data[8 : 8 + length] + b" " * 200_000
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    message = refused(tmp_path, hub.url, "-m", "org/tiny", *CPU, "--extra_options", "context_length=999999999")
    assert "longer than the checkpoint's" in message
    assert hub.sent["model.safetensors"] == HEADERS + 8 + len(text)


@pytest.mark.parametrize("name", sampled(["org/whole", "org/refuses"], 2))
def test_a_server_that_gives_no_ranges(hub: Served, tmp_path: Path, name: str) -> None:
    """One answers with everything, one with an error: what is wrong is told first all the same."""
    publish(hub, name)
    options = ("--extra_options", "context_length=999999999")
    assert "longer than the checkpoint's" in refused(tmp_path, hub.url, "-m", name, *CPU, *options)
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
    assert export(tmp_path, hub.url, "-m", name, *CPU)[0] == 0


def test_a_drafter_of_another_target_costs_no_weights(hub: Served, tmp_path: Path) -> None:
    publish(hub)
    publish_drafter(hub, hidden_size=64)
    message = refused(tmp_path, hub.url, "-m", "org/tiny", *GPU, "--extra_options", "drafter_path=org/drafter")
    assert "another target" in message and "hidden_size" in message
    assert all(sent <= 2 * HEADERS for sent in hub.sent.values())
    assert not list((tmp_path / "cache").rglob("*.safetensors"))


def test_shards_without_an_index(hub: Served, tmp_path: Path) -> None:
    (publish(hub, shards=2) / "model.safetensors.index.json").unlink()
    message = refused(tmp_path, hub.url, "-m", "org/tiny", *CPU)
    assert "no file model.safetensors" in message and "model-00001-of-00002.safetensors" in message
    assert hub.sent == {}


def test_a_shard_that_the_repository_lacks(hub: Served, tmp_path: Path) -> None:
    (publish(hub, shards=2) / "model-00002-of-00002.safetensors").unlink()
    message = refused(tmp_path, hub.url, "-m", "org/tiny", *CPU)
    assert "no file model-00002-of-00002.safetensors" in message and hub.sent == {}


def test_a_download_that_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = cached(tmp_path / "cache", TINY, without=("model.safetensors",))
    sizes = {"model.safetensors": 5_000_000_000}
    asked = Asked(HubName("org/tiny"), "-m")
    waiting = Snapshot(asked, tmp_path / "cache", (), snapshot, sizes, ("model.safetensors",))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=4_000_000_000))
    with pytest.raises(ExportError, match="not enough room") as caught:
        check_room([waiting])
    for part in ("-m org/tiny", "4.0 GB free", "5.0 GB", "-c or HF_HOME"):
        assert part in str(caught.value)
    with (snapshot.parent.parent / "blobs" / "abc.incomplete").open("wb") as begun:
        begun.truncate(1_500_000_000)
    check_room([waiting])  # what was begun is not loaded again


# --- drafters, revisions ---


def test_a_pair_from_the_hub_and_what_is_recorded(hub: Served, tmp_path: Path) -> None:
    target, release = publish(hub, shards=2), publish_drafter(hub, "org/drafter@v1")
    publish_drafter(hub)
    status, out, _ = export(
        tmp_path, hub.url, "-m", "org/tiny@main", *GPU, "--extra_options", "drafter_path=org/drafter@v1"
    )
    assert status == 0 and "Drafter: DFlash 2" in out
    found = manifest(tmp_path)
    assert found["options"]["drafter_path"] == f"org/drafter@{commit_of('drafter@v1')}"
    assert found["sources"]["target"] == {
        "repository": "org/tiny",
        "commit": COMMIT,
        "files": hashes(target, lambda name: name.endswith((".json", ".jinja")) or name.startswith("model-")),
    }
    assert found["sources"]["drafter"] == {
        "repository": "org/drafter",
        "commit": commit_of("drafter@v1"),
        "files": hashes(release, lambda name: True),
    }
    check_proof(hub, tmp_path)
    folders = [tmp_path / "cache" / f"models--org--{name}" / "snapshots" for name in ("tiny", "drafter")]
    before = (tmp_path / "out" / "draftsmith.json").read_bytes()
    arguments = [
        "-i",
        next(folders[0].iterdir()),
        *GPU,
        "--extra_options",
        f"drafter_path={next(folders[1].iterdir())}",
    ]
    assert export(tmp_path, CLOSED, *arguments)[0] == 0
    assert (tmp_path / "out" / "draftsmith.json").read_bytes() == before  # a snapshot tells the same by its path


def hashes(folder: Path, wanted: Callable[[str], bool]) -> dict[str, str]:
    """The hashes that the Hub has: of large files the SHA-256, of small ones git's."""
    found = {}
    for path in sorted(path for path in folder.iterdir() if path.is_file() and wanted(path.name)):
        data = path.read_bytes()
        large = path.suffix == ".safetensors"
        found[path.name] = f"sha256:{sha256(data)}" if large else f"git-sha1:{digest(data)}"
    return found


def check_proof(hub: Served, tmp_path: Path) -> None:
    """verify takes the names, at the commits that are recorded, and its report tells them."""
    shutil.rmtree(hub.root / "org" / "drafter@v1")  # gone from the Hub; the cache has it
    page = tmp_path / "page.html"
    arguments = ["verify", tmp_path / "out", "--target", "org/tiny", "--drafter", "org/drafter", "--files"]
    status, out, err = run(tmp_path, hub.url, *arguments, "-c", tmp_path / "cache", "--report", page, code=COMMAND)
    assert status == 0 and "FAILED" not in out and "weights as written" in out, out + err
    assert f"snapshots/{commit_of('drafter@v1')}" not in out


def test_the_report_tells_the_repository_its_commit_and_the_hubs_hashes(tmp_path: Path) -> None:
    from draftsmith.verify.folder import open_export
    from draftsmith.verify.hub_sources import facts

    snapshot = cached(tmp_path / "cache", TINY)
    assert export(tmp_path, CLOSED, "-m", "org/tiny", *CPU)[0] == 0
    rows = dict(facts(open_export(tmp_path / "out"), {"target": snapshot, "drafter": None}))
    assert rows["target made from"] == f"org/tiny at commit {COMMIT}, on the Hub" == rows["target compared with"]
    config = digest((TINY / "config.json").read_bytes())
    assert f"config.json git-sha1:{config}" in rows["target's files by the Hub's hashes"]
    rows = dict(facts(open_export(tmp_path / "out"), {"target": TINY, "drafter": None}))
    assert "target made from" in rows and "target compared with" not in rows


def test_a_mask_row_of_the_hub_comes_along(hub: Served, tmp_path: Path) -> None:
    publish(hub)
    (publish_drafter(hub) / "mask_embedding.pt").write_bytes(b"no pickle")
    message = refused(tmp_path, hub.url, "-m", "org/tiny", *GPU, "--extra_options", "drafter_path=org/drafter")
    assert "mask_embedding.pt" in message and "models--org--drafter" in message
    assert not any(name.endswith((".py", ".bin", ".pth")) for name in hub.downloads())


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["-m", "org/tiny@v9"], ["no such revision", "-m org/tiny@v9", "commit v9"]),
        (["-i", TINY, "org/drafter@v9"], ["no such revision", "drafter_path=org/drafter@v9", "commit v9"]),
        (["-i", TINY, "org/misspelt"], ["does not exist", "drafter_path=org/misspelt", "./org/misspelt", "HF_TOKEN"]),
        (["-i", TINY, "org/gated"], ["gated", "drafter_path=org/gated", "HF_TOKEN", "hf auth login"]),
        (["-i", TINY, "org/gguf"], ["no file config.json", "drafter_path=org/gguf", "x.gguf"]),
        (["-m", "org/tiny@"], ["cannot be a revision", "-m org/tiny@", "owner/name@revision"]),
        (["-m", "org/tiny@../../x"], ["cannot be a revision", "../../x"]),
        (["-i", TINY, "org/drafter@a b"], ["cannot be a revision", "'a b'"]),
    ],
)
def test_bad_names(hub: Served, tmp_path: Path, arguments: list[object], parts: list[str]) -> None:
    publish(hub)
    publish(hub, "org/gated")
    publish_drafter(hub)
    (hub.root / "org" / "gguf").mkdir()
    (hub.root / "org" / "gguf" / "x.gguf").touch()
    if arguments[0] == "-i":
        arguments = [*arguments[:2], "--extra_options", f"drafter_path={arguments[2]}"]
    message = refused(tmp_path, hub.url, *arguments, *GPU)
    assert all(part in message for part in parts), message


def test_a_drafter_without_a_network(tmp_path: Path) -> None:
    for env in ({}, {"HF_HUB_OFFLINE": "1"}):
        message = refused(tmp_path, CLOSED, "-i", TINY, *GPU, "--extra_options", "dflash2_path=org/drafter", **env)
        for part in ("cannot be reached", "dflash2_path=org/drafter", "./org/drafter", "HF_HUB_OFFLINE"):
            assert part in message


def test_what_is_a_folder_and_what_a_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert folder_or_hub("org/name", "x") == HubName("org/name")
    assert folder_or_hub("org/na.me-1_2@refs/pr/3", "x") == HubName("org/na.me-1_2", "refs/pr/3")
    for text in ("./org/name", "/org/name", "../name", ".hidden/name", "name", "a/b/c", "org/name/", "org/na me"):
        assert folder_or_hub(text, "x") == Path(text)
    assert folder_or_hub("~/name", "x") == tmp_path / "home" / "name"
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "org" / "name@v1").mkdir()
    assert folder_or_hub("org/name", "x") == Path("org/name")
    assert folder_or_hub("org/name@v1", "x") == Path("org/name@v1")
    assert folder_or_hub("org/name@v2", "x") == HubName("org/name", "v2")
    assert parse_extra_options(["drafter_path=org/other@v2"]) == {"drafter_path": HubName("org/other", "v2")}
    assert hub_name("gpt2", "-m") == HubName("gpt2") and str(HubName("a/b", "c")) == "a/b@c"


# --- what the cache tells ---


def test_a_cache_without_links_tells_the_commit_alone(hub: Served, tmp_path: Path) -> None:
    """Some file systems have no links: copies stand in their place, and have names that say nothing."""
    snapshot = cached(tmp_path / "cache", TINY)
    linked = provenance(snapshot, ["config.json"])
    assert linked and list(linked.files) == ["config.json"]
    shutil.copyfile(snapshot / "config.json", tmp_path / "copy")
    (tmp_path / "copy").replace(snapshot / "config.json")
    assert provenance(snapshot, ["config.json"]) == replace(linked, files={})


def test_a_folder_is_no_repository(tmp_path: Path) -> None:
    assert provenance(TINY, ["config.json"]) is None and recorded_name(TINY) == str(TINY)
    link = tmp_path / "link"
    link.symlink_to(cached(tmp_path / "cache", TINY))
    assert recorded_name(link) == f"org/tiny@{COMMIT}"
    assert provenance(cached(tmp_path / "other", TINY, commit="abc"), ["nothing"]) is not None


def test_progress_of_a_download_in_a_job(hub: Served, tmp_path: Path) -> None:
    publish(hub, shards=2)
    _, _, err = export(tmp_path, hub.url, "-m", "org/tiny", *CPU, code=LINES)
    assert all(c == "\n" or c.isprintable() for c in err) and "%|" not in err
    lines = [line for line in err.splitlines() if line.startswith("Downloading weights: ")]
    assert lines and " MB in " in lines[-1]
    shutil.rmtree(tmp_path / "cache")
    assert export(tmp_path, hub.url, "-m", "org/tiny", *CPU, "-q")[1:] == ("", "")
    shutil.rmtree(tmp_path / "cache")
    steps = export(tmp_path, hub.url, "-m", "org/tiny", *CPU, "-v")[2]
    for part in (
        f"-m org/tiny: commit {COMMIT}",
        "headers of 2 files read, no weights",
        "fetching model-00001-of-00002",
    ):
        assert part in steps


def headers_of(tmp_path: Path, folder: Path) -> tuple[Path, Path]:
    """A folder as a snapshot of the cache, and the headers of its weights alone."""
    snapshot, place = cached(tmp_path / "cache", folder), tmp_path / "headers"
    sizes = {"model.safetensors": (folder / "model.safetensors").stat().st_size}
    place.mkdir()
    files = (*TARGET_FILES, *DRAFTER_FILES)
    asked = Asked(HubName("org/tiny"), "-m")
    assert lay_out(Snapshot(asked, None, files, snapshot, sizes, ("model.safetensors",)), place)
    return snapshot, place


def test_headers_alone_open_as_the_whole_does(tmp_path: Path) -> None:
    """The same tensors in the same places, and hardly a byte of them."""
    snapshot, place = headers_of(tmp_path, TINY)
    file = place / "model.safetensors"
    assert file.stat().st_blocks * 512 < file.stat().st_size / 4
    whole, bare = Checkpoint(snapshot), Checkpoint(place, headers_only=True)
    assert {name: replace(t, path=snapshot / t.path.name, here=True) for name, t in bare.tensors.items()} == (
        whole.tensors
    )


def with_frequencies(_: Json, tensors: Arrays) -> None:
    """Stored rotary frequencies, which are compared with those that are computed."""
    tensors["layers.0.self_attn.rotary_emb.inv_freq"] = (1e6 ** (-np.arange(0, 32, 2) / 32)).astype(np.float32)


@pytest.mark.parametrize("part", [with_reduced_vocabulary, with_frequencies])
def test_what_depends_on_values_waits_for_them(tmp_path: Path, part: Callable[[Json, Arrays], None]) -> None:
    config = make_config("dspark")
    part(config, tensors := make_tensors(config))
    write(tmp_path / "d", config, tensors)
    snapshot, place = headers_of(tmp_path, tmp_path / "d")
    assert read_drafter(Checkpoint(place, headers_only=True)) == read_drafter(Checkpoint(snapshot))
    with pytest.raises(ExportError):
        read_drafter(Checkpoint(place))  # the holes are no values
