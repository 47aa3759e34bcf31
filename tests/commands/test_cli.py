"""The command line: light commands stay light, errors go to stderr without a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megacompile.commands.cli import main
from tests.commands.shell import ROOT, SPECS, ended

LIGHT = """
import sys
from megacompile.commands.cli import main
try:
    main(sys.argv[1:])
except SystemExit as ended:
    # onnx alone is light, and the classes of ONNX passes import it.
    heavy = {"torch", "lmdb", "onnxruntime", "openvino", "nncf", "torchao"} & set(sys.modules)
    print("HEAVY", sorted(heavy), "CODE", ended.code, file=sys.stderr)
"""


def light(*arguments: str) -> str:
    """What a light command prints, after a check that it imported nothing heavy."""
    done = subprocess.run(
        [sys.executable, "-c", LIGHT, *arguments],
        cwd=ROOT,
        env=os.environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.strip().splitlines()[-1] in ("HEAVY [] CODE 0", "HEAVY [] CODE None")
    return done.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--version"],
        ["build", "--help"],
        ["schema"],
        ["write-lmdb", "--help"],
        ["passes"],
        ["passes", "--json"],
        ["backends"],
        ["backends", "--json"],
        ["cache"],
    ],
)
def test_light_commands(arguments: list[str]) -> None:
    text = light(*arguments)
    assert text
    if "--json" in arguments or arguments == ["schema"]:
        json.loads(text)


@pytest.mark.parametrize("command", ["plan", "validate"])
def test_specs_are_planned_without_heavy_imports(command: str) -> None:
    names = [str(p.relative_to(ROOT)) for p in SPECS if p.stem != "pp_ocr_rec"]
    text = light(command, *names)
    for name in names:
        assert Path(name).stem in text


@pytest.mark.parametrize("command", ["build", "plan", "validate"])
def test_a_wrong_spec_exits_with_2(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\nnam: b\n")
    code, out, err = ended([command, str(path)], capsys)
    assert code == 2
    assert out == ""
    assert f"{path}:2:1: nam: unknown key 'nam'" in err
    assert "'model' is missing" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "nowhere", "--input", "a.npz"],
        ["bench", "nowhere"],
        ["report", "nowhere"],
        ["diff", "nowhere", "there"],
        ["init", "nowhere"],
        ["plan", "nowhere.yaml"],
        ["write-lmdb", "npz:nowhere", "there"],
    ],
)
def test_missing_files_are_errors_of_the_user(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = ended(arguments, capsys)
    assert code == 2
    assert "nowhere" in err


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (BrokenPipeError(), 1)])
def test_interrupts(error: BaseException, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from megacompile.commands import schema

    def raises(arguments: object) -> int:
        raise error

    monkeypatch.setattr(schema, "run", raises)
    monkeypatch.setattr(sys, "stderr", open(os.devnull, "w"))  # noqa: SIM115 - closed by main
    with pytest.raises(SystemExit) as caught:
        main(["schema"])
    assert caught.value.code == code
