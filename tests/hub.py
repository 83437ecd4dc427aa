"""A small hub on this machine, for tests of checkpoints that come from there. Nothing leaves it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.checkpoints import variant

REPOSITORY = Path(__file__).parent.parent
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLOSED = "http://127.0.0.1:9"  # nobody listens there
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]

# What must never be fetched: code, pickles, other formats, whatever lies in a sub-folder.
EXTRA = (
    "modeling_evil.py",
    "model.bin",
    "pytorch_model.bin",
    "model.gguf",
    "weights.pth",
    "consolidated.safetensors",
    "README.md",
    "original/config.json",
    "original/model.safetensors",
)
FETCH = (
    "import sys; from pathlib import Path; from builder.cli import guarded; from builder.hub import fetch\n"
    "cache = Path(sys.argv[2]) if len(sys.argv) > 2 else None\n"
    "sys.exit(guarded(lambda: print(fetch(sys.argv[1], cache))))"
)


class Hub(BaseHTTPRequestHandler):
    """The few endpoints of the Hub that a download asks for, serving the folders under ``root``.

    ``org/name@rev`` is the folder of a revision. Some names have habits: ``org/down``, ``org/gated``, ``org/whole``
    (knows no ranges), ``org/refuses`` (takes none).
    """

    def __init__(self, served: Served, *arguments: object) -> None:
        self.served, self.root = served, served.root
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.served.requests.append(f"{self.command} {path}")
        parts = path.removeprefix("/").removeprefix("api/models/").split("/")
        model, rest = "/".join(parts[:2]), parts[2:]
        commit = self.commit(model, rest[1]) if len(rest) > 1 else COMMIT
        folder = self.root / (model if commit == COMMIT else f"{model}@{rest[1]}")
        if commit and commit != COMMIT:
            folder = next(p for p in (self.root / "org").iterdir() if commit_of(p.name) == commit)
        if model == "org/down":
            self.answer(503, b"")
        elif not (self.root / model).is_dir():
            self.answer(401, b"{}", {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
        elif commit is None:
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound", "X-Error-Message": "Invalid rev id"})
        elif path.startswith("/api/") and rest[:1] == ["tree"]:
            self.answer(200, json.dumps(self.tree(folder)).encode())
        elif path.startswith("/api/"):
            self.answer(200, json.dumps({"id": model, "sha": commit, "siblings": []}).encode())
        elif model == "org/gated":
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted"})
        else:
            self.file(model, commit, folder / "/".join(rest[2:]))

    do_HEAD = do_GET

    def commit(self, model: str, revision: str) -> str | None:
        """The commit of a revision, which may be a commit itself."""
        if revision in (COMMIT, "main"):
            return COMMIT
        names = [path.name for path in (self.root / "org").iterdir() if path.name.startswith(f"{model[4:]}@")]
        found = [name for name in names if revision in (name.split("@")[1], commit_of(name))]
        return commit_of(found[0]) if found else None

    def file(self, model: str, commit: str, path: Path) -> None:
        body, status = path.read_bytes(), 200
        headers = {"ETag": f'"{digest(body)}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        if path.suffix == ".safetensors":
            headers |= {"X-Linked-ETag": f'"{sha256(body)}"', "X-Linked-Size": str(len(body))}
        ranged = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if ranged and model == "org/refuses":
            self.answer(416, b"")
            return
        if ranged and model != "org/whole" and self.command == "GET":
            start, end = int(ranged[1]), int(ranged[2] or len(body) - 1)
            headers["Content-Range"] = f"bytes {start}-{min(end, len(body) - 1)}/{len(body)}"
            body, status = body[start : end + 1], 206
        if self.command == "GET" and path.suffix == ".safetensors":
            self.served.sent[path.name] = self.served.sent.get(path.name, 0) + len(body)
        self.answer(status, body, headers)

    def tree(self, folder: Path) -> list[dict[str, object]]:
        entries = []
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            body, name = path.read_bytes(), path.relative_to(folder).as_posix()
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(body), "oid": digest(body)}
            if path.suffix == ".safetensors":
                entry["lfs"] = {"oid": sha256(body), "size": len(body), "pointerSize": 134}
            entries.append(entry)
        return entries

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (
            {"Content-Type": "application/json", "Content-Length": str(len(body))} | (headers or {})
        ).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            with suppress(BrokenPipeError, ConnectionResetError):  # who has read enough has gone
                self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""


def digest(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def commit_of(name: str) -> str:
    """The commit of ``name@revision``."""
    return digest(name.encode())


class Served:
    """A running hub: its address, the folder it serves, what it was asked for, and bytes of weights by file."""

    def __init__(self, root: Path) -> None:
        self.root, self.requests, self.sent = root, list[str](), dict[str, int]()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Hub, self))
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def downloads(self) -> set[str]:
        """The files that were asked for, paths within the repository."""
        return {line.split("/resolve/")[1].split("/", 1)[1] for line in self.requests if "/resolve/" in line}


@contextmanager
def running(root: Path) -> Iterator[Served]:
    """A hub that serves while the block lasts."""
    served = Served(root)
    (served.root / "org").mkdir(parents=True)
    thread = threading.Thread(target=served.server.serve_forever)
    thread.start()
    yield served
    served.server.shutdown()
    thread.join()
    served.server.server_close()


def publish(hub: Served, name: str = "org/tiny", shards: int = 0) -> Path:
    """Put the bundled checkpoint on the hub, with files beside it that an export has no use for."""
    folder = variant(hub.root / name, shards=shards)
    for extra in EXTRA:
        (folder / extra).parent.mkdir(exist_ok=True)
        (folder / extra).write_text("raise SystemExit('executed')")
    return folder


def cached(cache: Path, checkpoint: Path, *, without: tuple[str, ...] = (), commit: str = COMMIT) -> Path:
    """A cache of org/tiny as ``huggingface_hub`` lays it out, made by hand; the snapshot's folder."""
    home = cache / "models--org--tiny"
    snapshot = home / "snapshots" / commit
    for folder in (home / "blobs", home / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    (home / "refs" / "main").write_text(commit)
    for path in checkpoint.iterdir():
        if path.name not in without:
            blob = digest(path.read_bytes())
            shutil.copyfile(path, home / "blobs" / blob)
            (snapshot / path.name).symlink_to(f"../../blobs/{blob}")
    return snapshot


def run(tmp_path: Path, url: str, *arguments: object, code: str = FETCH, **env: str) -> tuple[int, str, str]:
    """``fetch`` in a process of its own, since the library reads its settings when it is imported."""
    settings = {key: value for key, value in os.environ.items() if not key.upper().startswith(("HF_", "HUGGING"))}
    settings |= {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1"} | env
    command = [sys.executable, "-c", code, *map(str, arguments)]
    result = subprocess.run(command, cwd=REPOSITORY, env=settings, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in result.stderr, result.stderr
    return result.returncode, result.stdout.strip(), result.stderr


def fetched(tmp_path: Path, url: str, *arguments: object, **env: str) -> Path:
    status, out, err = run(tmp_path, url, *arguments, **env)
    assert status == 0, err
    return Path(out)


def refused(tmp_path: Path, url: str, *arguments: object, **env: str) -> str:
    status, out, err = run(tmp_path, url, *arguments, **env)
    assert status == 2 and out == ""
    for label in ("error: ", "where:", "found:", "accepted:", "to do:"):
        assert label in err
    return err
