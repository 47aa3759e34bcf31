"""A bundle becomes a version of a model, or is refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megacompile.commands.cli import main
from megacompile.deploy.triton.export import NATIVE
from megacompile.errors import SpecError
from megacompile.spec.load import load_spec_data
from tests.deploy.triton.conftest import spec
from tests.deploy.triton.exporting import FIXED, export, refused
from tests.field import world

pytest.importorskip("tritonclient", reason="tritonclient is not installed")


def test_sizes_beyond_the_profile_are_refused(bundle: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    said = refused(bundle, repository, {**FIXED, "preferred_batch_sizes": [4, 16]})
    assert "16" in said
    assert "at most 8" in said
    assert "input 'x'" in said
    said = refused(bundle, repository, {**FIXED, "max_batch_size": 32})
    assert "dim 'batch'" in said
    said = refused(bundle, repository, {**FIXED, "max_batch_size": 2})
    assert "preferred batch size 4" in said


def test_a_bundle_that_never_ran_is_refused(bundle: Path, tmp_path: Path) -> None:
    assert "megacompile finish" in refused(bundle, tmp_path / "repository", FIXED, executed=False)


def test_native_platforms() -> None:
    assert {name: one.platform for name, one in NATIVE.items()} == {
        "onnxruntime": "onnxruntime_onnx",
        "openvino": "",
        "torchscript": "pytorch_libtorch",
        "aotinductor": "torch_aoti",
        "tensorrt": "tensorrt_plan",
    }


def test_pytorchs_tensors_are_numbered(bundle: Path, tmp_path: Path) -> None:
    config = export(
        bundle, tmp_path / "repository", {**FIXED, "platform": "native"}, backend="aotinductor"
    )
    assert [one.name for one in config.input] == ["x__0"]
    assert [one.name for one in config.output] == ["y__0", "total__1"]
    assert list(config.model_warmup[0].inputs) == ["x__0"]


@pytest.mark.parametrize(("flavour", "fits"), [("tensorrt", True), ("tensorrt-rtx", False)])
def test_tensorrt_plans(bundle: Path, tmp_path: Path, flavour: str, fits: bool) -> None:
    record = {"flavour": flavour, "version": "x", "archs": ["sm_89", "sm_120"]}
    (bundle / "engine" / "tensorrt.json").write_text(json.dumps(record))
    triton = {**FIXED, "platform": "native"}
    target = {"device": "cuda", "threads": 2, "arch": ["sm_89"], "needs_isa": []}
    if not fits:
        said = refused(bundle, tmp_path / "repository", triton, backend="tensorrt", target=target)
        assert "does not load engines of tensorrt-rtx" in said
        return
    config = export(bundle, tmp_path / "repository", triton, backend="tensorrt", target=target)
    assert config.platform == "tensorrt_plan"
    assert dict(config.cc_model_filenames) == {"8.9": "sm_89.engine", "12.0": "sm_120.engine"}
    assert config.instance_group[0].kind == 1  # KIND_GPU


def test_a_backend_that_triton_lacks_is_refused(bundle: Path, tmp_path: Path) -> None:
    said = refused(
        bundle, tmp_path / "repository", {**FIXED, "platform": "native"}, backend="torch-compile"
    )
    assert "platform: python" in said


@pytest.mark.parametrize(
    ("triton", "says"),
    [
        ({"prefered_batch_sizes": [2]}, "preferred_batch_sizes"),
        ({"instances": 0}, "greater than or equal to 1"),
        ({"versions": {"latest": 1, "specific": [1]}}, "one of them"),
        ({"preprocess": {"python": "a.py:b", "inputs": {}}}, "at least 1"),
        (
            {"preprocess": {"python": "a.py:b", "inputs": {"t": {"dtype": "text", "shape": [1]}}}},
            "string",
        ),
        ({"model_name": "a/b"}, "pattern"),
        ({"max_batch_size": 64}, "at most 8"),
        ({"preferred_batch_sizes": [4, 16]}, "preferred_batch_sizes 16 is beyond"),
    ],
)
def test_wrong_settings_are_found_when_the_spec_is_read(triton: dict[str, Any], says: str) -> None:
    loaded = load_spec_data(spec(deploy={"triton": triton}), Path())
    assert len(loaded.problems) == 1
    assert says in str(loaded.problems[0])
    assert ":" in str(loaded.problems[0].where)


def test_a_missing_step_is_found_before_anything_runs(tmp_path: Path) -> None:
    import megacompile

    step = {"python": "absent.py:f", "inputs": {"t": {"dtype": "string", "shape": [1]}}}
    world.write(tmp_path, {"model.py": "raise RuntimeError('it was run')"})
    (tmp_path / "net.yaml").write_text(json.dumps(spec(deploy={"triton": {"preprocess": step}})))
    with pytest.raises(SpecError, match=r"no such file 'absent\.py'"):
        megacompile.build(tmp_path / "net.yaml")


def test_the_command_says_what_it_did(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["export-triton", str(bundle), str(tmp_path / "repository")])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    assert "batch   8:" in shown
    assert "clients call 'net'" in shown
