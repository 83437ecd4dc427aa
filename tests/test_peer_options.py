"""The command line of onnxruntime-genai's own builder: each part of it does the same here, or says what to do."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from builder import option_table, peer_options, peer_table
from builder.cli import main
from builder.option_table import parse_extra_options
from builder.options import PRECISIONS
from builder.peer_table import FLAGS, OPTIONS, Fate, PeerOption
from drafters.checkpoint.dialects import KEYS as DRAFTER_KEYS
from onnxkit.errors import ExportError, did_you_mean, nearest
from scripts.make_peer_table import PAGE, page
from tests.checkpoints import TINY

OURS = {option.name: option for option in option_table.OPTIONS}


def source() -> Path:
    """The other builder's own source, which is in the runtime's wheel. Nothing of it is imported."""
    package = find_spec("onnxruntime_genai")
    assert package is not None and package.submodule_search_locations
    return Path(package.submodule_search_locations[0]) / "models"


def declared() -> dict[str, ast.Call]:
    """Its flags: the last of the names of each ``add_argument``, with the call."""
    tree = ast.parse((source() / "builder.py").read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [node for node in calls if isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"]
    names = [[arg.value for arg in call.args if isinstance(arg, ast.Constant)] for call in calls]
    return {str(name[-1]): call for name, call in zip(names, calls, strict=True)}


def documented() -> dict[str, str]:
    """Its extra options, with what its help says of each."""
    (text,) = [
        node.value
        for node in ast.walk(declared()["--extra_options"])
        if isinstance(node, ast.Constant) and "Key value pairs" in str(node.value)
    ]
    parts = re.split(r"^ {16}([a-z][a-z0-9_]*) = ", str(text), flags=re.MULTILINE)
    return {name: " ".join(said.split()) for name, said in zip(parts[1::2], parts[2::2], strict=True)}


def read() -> set[str]:
    """The names that its code looks up in the extra options, but for those that it puts there itself."""
    looked_up = r'extra_options(?:\.get|\.pop)?[\[(]"([a-z0-9_]+)"|"([a-z0-9_]+)" (?:not )?in (?:self\.)?extra_options'
    found = {
        name
        for path in source().rglob("*.py")
        for match in re.findall(looked_up, path.read_text(encoding="utf-8"))
        for name in match
        if name
    }
    return {name for name in found if not name.startswith("_")} - {"hf_details"}


def test_the_table_is_complete() -> None:
    """No more and no fewer than the installed release has, in its help and in what its code reads."""
    assert {option.name for option in OPTIONS} == set(documented()) >= read()
    assert {flag.name for flag in FLAGS} == set(declared())
    assert (len(OPTIONS), len(FLAGS)) == (61, 13)


def test_what_is_the_same_is_ours_and_nothing_else_is() -> None:
    for option in OPTIONS:
        assert (option.name in OURS) == (option.fate is Fate.SAME), option.name


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.default], ids=lambda option: option.name)
def test_defaults_that_differ(option: PeerOption) -> None:
    """What the page says of the other builder's defaults is what its help says."""
    there, said = option.default.split(",")[0], documented()[option.name]
    assert f"Default is {there}" in said or f"{there} (default)" in said
    if option.fate is Fate.SAME:
        assert OURS[option.name].default != there
    else:
        assert not option.accepts(there)


def refusal(pair: str) -> ExportError:
    with pytest.raises(ExportError) as refused:
        parse_extra_options([pair])
    return refused.value


@pytest.mark.parametrize("option", [option for option in OPTIONS if option.fate is not Fate.SAME], ids=lambda o: o.name)
def test_no_option_is_answered_by_a_wrong_suggestion(option: PeerOption) -> None:
    for pair in (f"{option.name}=whatever", option.name, f"{option.name}="):
        error = refusal(pair)
        assert "Did you mean" not in str(error)
        assert option.meaning in str(error.details["found"]) and error.details["to do"] == option.here
    for value in option.passes:
        assert parse_extra_options([f"{option.name}={value}", f" {option.name} = {value.upper()} "]) == {}
        (note,) = peer_options.notes([f"{option.name}={value}"])
        assert f"{option.name}={value}" in note
    if {"true", "false"} & set(option.passes):
        assert option.accepts("1") or option.accepts("0")


@pytest.mark.parametrize("flag", [flag for flag in FLAGS if flag.fate is not Fate.SAME], ids=lambda flag: flag.name)
def test_no_flag_is_answered_by_a_wrong_suggestion(capsys: pytest.CaptureFixture[str], flag: PeerOption) -> None:
    for written in ([flag.name, "{}"], [f"{flag.name}={{}}"]):
        assert main(["-i", str(TINY), *written]) == 2
        message = capsys.readouterr().err
        assert "Did you mean" not in message and flag.meaning in message and flag.here in message


def names() -> list[str]:
    return list(dict.fromkeys((*OURS, *(option.name for option in OPTIONS))))


def test_no_name_is_near_another_one() -> None:
    """Take away what is meant, and nothing is suggested in its place."""
    assert {name: found for name in names() if (found := nearest(name, set(names()) - {name}))} == {}


def test_no_key_of_a_config_is_near_another_one() -> None:
    found = {name: nearest(name, set(DRAFTER_KEYS) - {name}) for name in DRAFTER_KEYS}
    assert {tuple(sorted((name, near))) for name, near in found.items() if near} == {
        ("_attn_implementation", "attn_implementation"),
        ("_name_or_path", "name_or_path"),
        ("id2label", "label2id"),
        ("mrope_interleaved", "rope_interleaved"),
    }


def misspellings(name: str) -> set[str]:
    """A letter left out, two letters swapped, in any word of more than three; a separator left out, or another one."""
    found = {name.replace("_", ""), name.replace("_", "-")} - {name}
    words = name.split("_")
    for at, word in enumerate(words):
        for i in range(1, len(word)) if len(word) > 3 else ():
            for wrong in (word[:i] + word[i + 1 :], word[: i - 1] + word[i] + word[i - 1] + word[i + 1 :]):
                found.add("_".join([*words[:at], wrong, *words[at + 1 :]]))
    return found - {name}


@pytest.mark.parametrize("name", names())
def test_a_misspelt_name_is_answered_by_what_was_meant(name: str) -> None:
    """Whoever's it is; and with what it means, where it is the other builder's."""
    answers = {written: nearest(written, names()) for written in misspellings(name)}
    assert {written: found for written, found in answers.items() if found not in (name, None)} == {}
    assert sum(found == name for found in answers.values()) > 0.9 * len(answers)
    if option := peer_options.peer_option(name):
        written = next(written for written, found in answers.items() if found == name)
        fix = str(refusal(f"{written}=1").details["to do"])
        assert f"Did you mean {name}?" in fix and option.meaning in fix and option.here in fix


@pytest.mark.parametrize("old", ["int4_block_size", "int4_algo_config", "int4_is_symmetric", "int4_accuracy_level"])
def test_old_names(old: str) -> None:
    error = refusal(f"{old}=4")
    assert "old name" in str(error) and "quantized" in str(error)


def test_a_token_is_never_shown() -> None:
    for name in ("hf_token", "hf_tokne", "token"):
        error = refusal(f"{name}=hf_secret")
        assert "secret" not in str(error)
    assert "HF_TOKEN" in str(refusal("hf_token=abc")) and "abc" not in str(refusal("hf_token=abc"))


@pytest.mark.parametrize(
    ("pair", "advice"),
    [
        ("precision=int4", "-p VALUE"),
        ("model_name=a/b", "-m VALUE"),
        ("execution_provider=cuda", "-e VALUE"),
        ("drafter=x", "drafter_path"),
        ("max_batch=3", "max_batch_size"),
    ],
)
def test_other_names_of_what_there_is(pair: str, advice: str) -> None:
    assert advice in str(refusal(pair).details["to do"])


def choices(flag: str) -> list[str]:
    (values,) = [keyword.value for keyword in declared()[flag].keywords if keyword.arg == "choices"]
    return [str(value) for value in ast.literal_eval(values)]


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        *(("-p", value) for value in choices("--precision")),
        *(("-e", value) for value in choices("--execution_provider")),
        *((flag, value) for flag, values in peer_options.VALUES.items() for value in values),
        *((flag, value) for flag in ("-e", "-p") for value in ("CPU", "CUDA", "FP16", "BF16", "Fp32")),
    ],
)
def test_each_value_says_what_to_do(capsys: pytest.CaptureFixture[str], flag: str, value: str) -> None:
    taken = {"-p": {p for values in PRECISIONS.values() for p in values}, "-e": set(PRECISIONS)}
    if value in taken[flag] or value.lower() not in {*taken[flag], *peer_options.VALUES[flag]}:
        return
    arguments = {"-i": str(TINY), "-o": "out", "-p": "fp32", "-e": "cpu"} | {flag: value}
    assert main([part for pair in arguments.items() for part in pair]) == 2
    message = capsys.readouterr().err
    assert "Did you mean" not in message and "Choose one of these" not in message
    assert re.search(rf"Write {flag} \S|hoose|Name the type", message)


def test_values_are_no_misspellings_of_each_other() -> None:
    for value in ("gpu", "int4", "int8", "fp8", "dml", "qnn"):
        assert did_you_mean(value, ["cpu", "cuda"]) is None and did_you_mean(value, ["bf16", "fp16", "fp32"]) is None


def test_a_note_stands_in_the_summary(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    arguments = ["-i", str(TINY), "-o", str(tmp_path / "out"), "-p", "fp32", "-e", "cpu"]
    assert main([*arguments, "--extra_options", "fuse_qkv=true", "exclude_mtp=1", "hf_remote=false"]) == 0
    out = capsys.readouterr().out
    for pair in ("fuse_qkv=true", "exclude_mtp=1", "hf_remote=false"):
        assert f"Note: {pair} asks for what happens anyway" in out


def test_the_page_is_up_to_date() -> None:
    """Else run python -m scripts.make_peer_table."""
    assert PAGE.read_text(encoding="utf-8") == page()
    text = page()
    for option in (*OPTIONS, *FLAGS):
        assert f"`{option.name}`" in text
    assert peer_table.PEER.split("'")[0] in text
