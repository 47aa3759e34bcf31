"""The command line: light commands stay light, errors go to stderr without a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import yaml

from megacompile.commands.cli import main
from megacompile.commands.schema import spec_schema

ROOT = Path(__file__).resolve().parents[2]
SPECS = sorted((ROOT / "specs").glob("*.yaml"))

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


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGACOMPILE_CACHE", str(tmp_path / "cache"))


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


def test_passes_lists_options(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["passes", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert {"quantize", "cast", "simplify", "export"} <= {row["name"] for row in rows}
    assert all({"consumes", "produces", "effect", "options"} <= set(row) for row in rows)


def test_the_schema_takes_all_specs_and_is_one() -> None:
    schema = spec_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in SPECS:
        data = yaml.safe_load(path.read_text())
        assert [e.message for e in validator.iter_errors(data)] == [], path.name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nam", 1),
        ("passes", ["simplfy"]),
        ("passes", [{"quantize": {"metod": "static"}}]),
        ("passes", [{"quantize": {"method": "statik"}}]),
        ("backends", ["openvin"]),
        ("dims", {"batch": {"min": 0, "typical": 1, "max": 1}}),
        ("inputs", {}),
        ("inputs", {"x": {"shape": [1], "dtype": "float31"}}),
        ("seed", -1),
        ("budget", {"cosine": 2}),
        ("workload", "training"),
        ("variants", {"a": {"passes": [{"cast": 3}]}}),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(key: str, value: Any) -> None:
    data = {
        "name": "a",
        "model": {"onnx": "a.onnx"},
        "inputs": {"x": {"shape": [1]}},
        "backends": ["openvino"],
    }
    validator = jsonschema.Draft202012Validator(spec_schema())
    assert validator.is_valid(data)
    assert not validator.is_valid({**data, key: value})


def ended(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return caught.value.code, captured.out, captured.err


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


def test_plan_goes_on_after_a_wrong_spec(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("[]")
    code, out, err = ended(["plan", str(wrong), str(ROOT / "specs/digits_cnn.yaml")], capsys)
    assert code == 2
    assert "digits_cnn: " in out
    assert "wrong.yaml:1:1" in err


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


def test_sizes_to_keep(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ended(["cache", "--prune", "1.5GB"], capsys)
    assert code == 0
    assert "removed 0 entries" in out
    code, _, err = ended(["cache", "--prune", "much"], capsys)
    assert code == 2
    assert "is no size" in err


def test_a_database_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("lmdb")
    np.savez(tmp_path / "data.npz", x=np.zeros((5, 2), np.float32), y=np.arange(5))
    command = ["write-lmdb", f"npz:{tmp_path}/data.npz", f"{tmp_path}/out", "--limit", "4"]
    code, out, err = ended(command, capsys)
    assert code == 0
    assert "4 samples" in out
    assert "x: float32 [2]" in out
    assert f"batches: lmdb:{tmp_path}/out" in out
    assert "4 of 4" in err
    code, _, err = ended(command, capsys)
    assert code == 2
    assert "--overwrite" in err
    assert ended([*command, "--overwrite", "--names", "y"], capsys)[0] == 0
    code, _, err = ended([*command[:-1], "0"], capsys)
    assert code == 2
    assert "is no number of samples" in err
