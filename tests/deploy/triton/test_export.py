"""Configurations and repositories on disk: what is written, kept and refused. No server."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megacompile.commands.cli import main
from megacompile.deploy.triton.config import from_text, to_text
from megacompile.deploy.triton.export import NATIVE, export_triton
from megacompile.deploy.triton.ports import batch_dim, interface
from megacompile.deploy.triton.serving import answer
from megacompile.deploy.triton.tuning import (
    Measurement,
    Tuning,
    choose,
    measure_curve,
    sizes_to_measure,
)
from megacompile.engines.bundle import MANIFEST, seal
from megacompile.errors import BundleError, SpecError
from megacompile.models.comparison import InputSet
from megacompile.models.shapes import output_shapes
from megacompile.models.signature import Signature
from megacompile.spec.load import load_spec_data
from megacompile.spec.models import Dim, TensorInput
from tests.deploy.triton.bundles import write
from tests.deploy.triton.conftest import NET, World, read_json, spec
from tests.field import world

pytest.importorskip("tritonclient", reason="tritonclient is not installed")
FIXED: dict[str, Any] = {"preferred_batch_sizes": [2, 4], "max_queue_delay_us": 300}


def reseal(folder: Path, spec_data: dict[str, Any] | None = None, **changes: Any) -> Path:
    """The bundle with another manifest or spec, its hashes right again."""
    manifest = read_json(folder / MANIFEST)
    if spec_data is not None:
        (folder / "spec.json").write_text(json.dumps(spec_data))
    (folder / MANIFEST).unlink()
    manifest = {**manifest, **changes}
    seal({k: v for k, v in manifest.items() if k not in ("files", "sha256")}, folder)
    return folder


@pytest.fixture
def bundle(net: World, tmp_path: Path) -> Path:
    return Path(shutil.copytree(net.bundle, tmp_path / "bundle"))


def export(bundle: Path, repository: Path, triton: dict[str, Any], **changes: Any) -> Any:
    """Export with other settings; the configuration as a message."""
    reseal(bundle, {**read_json(bundle / "spec.json"), "deploy": {"triton": triton}}, **changes)
    exported = export_triton(bundle, repository, lambda message: None)
    return from_text((repository / exported.models[0] / "config.pbtxt").read_text(), "")


def refused(bundle: Path, repository: Path, triton: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(BundleError) as caught:
        export(bundle, repository, triton, **changes)
    assert not list(repository.glob("[!.]*"))  # nothing was written
    return str(caught.value)


def test_the_configuration_agrees_with_the_signature(bundle: Path, tmp_path: Path) -> None:
    config = export(bundle, tmp_path / "repository", FIXED)
    assert (config.name, config.backend, config.max_batch_size) == ("net", "python", 8)
    assert [(i.name, i.data_type, list(i.dims)) for i in config.input] == [("x", 11, [-1, 64])]
    assert config.input[0].allow_ragged_batch
    outputs = [(o.name, list(o.dims), o.HasField("reshape")) for o in config.output]
    assert outputs == [("y", [-1, 64], False), ("total", [1], True)]
    assert list(config.dynamic_batching.preferred_batch_size) == [2, 4]
    assert config.dynamic_batching.max_queue_delay_microseconds == 300
    assert config.instance_group[0].count == 1
    assert config.version_policy.latest.num_versions == 1
    assert [one.batch_size for one in config.model_warmup] == [1, 2, 4]
    assert list(config.model_warmup[0].inputs["x"].dims) == [4, 64]
    data = (tmp_path / "repository" / "net" / "warmup" / "input-0").read_bytes()
    assert len(data) == 4 * 64 * 4
    assert to_text(from_text(to_text(config), "")) == to_text(config)


@pytest.mark.parametrize(
    ("triton", "look"),
    [
        ({"dynamic_batching": False}, lambda c: not c.HasField("dynamic_batching")),
        (
            {"preferred_batch_sizes": [], "max_queue_delay_us": 0},
            lambda c: c.HasField("dynamic_batching"),
        ),
        ({"instances": 3}, lambda c: c.instance_group[0].count == 3),
        ({"versions": "all"}, lambda c: c.version_policy.HasField("all")),
        (
            {"versions": {"specific": [1, 4]}},
            lambda c: list(c.version_policy.specific.versions) == [1, 4],
        ),
        ({"warmup": False}, lambda c: not c.model_warmup),
        ({"model_name": "other"}, lambda c: c.name == "other"),
        (
            {"max_batch_size": 0, "preferred_batch_sizes": []},
            lambda c: (c.max_batch_size, list(c.input[0].dims)) == (0, [-1, -1, 64]),
        ),
        ({"max_batch_size": 4}, lambda c: c.max_batch_size == 4),
        (
            {"platform": "native"},
            lambda c: (
                (c.backend, c.platform, c.default_model_filename)
                == ("onnxruntime", "onnxruntime_onnx", "model.onnx")
            ),
        ),
    ],
)
def test_every_option_is_honoured(
    bundle: Path, tmp_path: Path, triton: dict[str, Any], look: Any
) -> None:
    assert look(export(bundle, tmp_path / "repository", {**FIXED, **triton}))


def test_preferred_sizes_and_delay_come_from_the_measured_curve(
    bundle: Path, tmp_path: Path
) -> None:
    reseal(bundle, {**read_json(bundle / "spec.json"), "deploy": {"triton": {}}})
    exported = export_triton(bundle, tmp_path / "repository", lambda message: None)
    assert [one.batch for one in exported.curve] == [1, 2, 4, 8]
    assert exported.tuning == choose(exported.curve)


@pytest.mark.parametrize(
    ("latencies", "expected"),
    [
        ({1: 10, 2: 11, 4: 13, 8: 20}, Tuning((2, 4, 8), 5000)),
        ({1: 10, 2: 20, 4: 40, 8: 80}, Tuning((), 0)),
        ({1: 10, 2: 12, 4: 24, 8: 48}, Tuning((2,), 5000)),
        ({1: 8}, Tuning((), 0)),
    ],
)
def test_a_larger_batch_must_be_worth_it(latencies: dict[int, float], expected: Tuning) -> None:
    assert choose([Measurement(b, ms) for b, ms in latencies.items()]) == expected


def test_sizes_of_the_curve() -> None:
    assert sizes_to_measure(1) == [1]
    assert sizes_to_measure(8) == [1, 2, 4, 8]
    assert sizes_to_measure(12) == [1, 2, 4, 8, 12]


def test_the_curve_is_of_real_calls(net: World) -> None:
    seen: list[int] = []

    def run(feeds: Any) -> Any:
        seen.append(len(feeds["x"]))
        return {}

    curve = measure_curve(run, net.model.signature, "batch", 4)
    assert {one.batch for one in curve} == set(seen) == {1, 2, 4}
    assert all(one.latency_ms > 0 for one in curve)


# What Triton's users met when their repositories were loaded (server#1889, #1105, #4811, #5721).
def test_a_fixed_batch_is_refused_by_name(bundle: Path, tmp_path: Path) -> None:
    manifest = read_json(bundle / MANIFEST)
    manifest["signature"]["inputs"] = {"image": {"shape": [1, 3, 32, 32], "dtype": "float32"}}
    said = refused(
        bundle,
        tmp_path / "repository",
        {**FIXED, "max_batch_size": 8},
        signature=manifest["signature"],
    )
    assert "input 'image' has no batch axis" in said
    assert "max_batch_size: 0" in said


def test_an_output_without_batch_is_refused_by_name(bundle: Path, tmp_path: Path) -> None:
    outputs = {"y": ["batch", "rows", 64], "total": [7]}
    said = refused(bundle, tmp_path / "repository", {**FIXED, "max_batch_size": 8}, outputs=outputs)
    assert "output 'total' has no batch axis" in said


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


def test_a_type_that_triton_lacks_is_refused_by_name(bundle: Path, tmp_path: Path) -> None:
    manifest = read_json(bundle / MANIFEST)
    manifest["signature"]["output_dtypes"] = ["float32", "complex64"]
    said = refused(bundle, tmp_path / "repository", FIXED, signature=manifest["signature"])
    assert "no type for tensor 'total'" in said
    assert "complex64" in said


def test_known_sizes_stay_and_types_are_tritons(tmp_path: Path) -> None:
    inputs = {
        name: TensorInput(shape=["n", "t", 3], dtype=dtype)
        for name, dtype in (("a", "bool"), ("b", "uint8"), ("c", "bfloat16"))
    }
    dims = {"n": Dim(min=1, typical=2, max=4), "t": Dim(min=5, typical=5, max=5)}
    signature = Signature(inputs, dims, ("y", "z"), None, ("float64", "int16"))
    found = interface(signature, {"y": ["n", 16075], "z": ["n", None]}, None)
    assert [port.shape for port in found.inputs] == [(5, 3)] * 3
    assert [port.triton_type for port in found.inputs] == ["TYPE_BOOL", "TYPE_UINT8", "TYPE_BF16"]
    assert [port.shape for port in found.outputs] == [(16075,), (-1,)]
    assert [port.triton_type for port in found.outputs] == ["TYPE_FP64", "TYPE_INT16"]


def test_output_shapes_follow_the_dims() -> None:
    dims = {"n": Dim(min=1, typical=2, max=4), "t": Dim(min=2, typical=4, max=9)}
    signature = Signature({"x": TensorInput(shape=["n", "t"])}, dims, ("y", "z"))
    sets = [
        InputSet(
            str(n), {"x": np.zeros((n, t))}, {"y": np.zeros((n, t, 5)), "z": np.zeros((7, t - 1))}
        )
        for n, t in ((2, 4), (1, 2), (4, 9), (3, 5))
    ]
    assert output_shapes(signature, sets) == {"y": ["n", "t", 5], "z": [7, None]}
    assert batch_dim(signature) == "n"


def test_versions_are_added_and_never_changed(bundle: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    export(bundle, repository, FIXED)
    before = {p: p.read_bytes() for p in (repository / "net").rglob("*") if p.is_file()}
    exported = export_triton(bundle, repository, lambda message: None)
    assert exported.version == 2
    export(bundle, repository, {**FIXED, "max_queue_delay_us": 900})
    assert sorted(p.name for p in (repository / "net").iterdir() if p.name.isdigit()) == list("123")
    after = {p: p.read_bytes() for p in before}
    assert after == before


def test_tuning_changes_only_when_asked(bundle: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    export(bundle, repository, FIXED)
    reseal(
        bundle,
        {
            **read_json(bundle / "spec.json"),
            "deploy": {"triton": {**FIXED, "max_queue_delay_us": 900}},
        },
    )
    kept = export_triton(bundle, repository, lambda message: None)
    assert "--new-config" in kept.notes[0]
    text = (repository / "net" / "config.pbtxt").read_text()
    assert "max_queue_delay_microseconds: 300" in text
    changed = export_triton(bundle, repository, lambda message: None, new_config=True)
    assert changed.notes == []
    text = (repository / "net" / "config.pbtxt").read_text()
    assert "max_queue_delay_microseconds: 900" in text


def test_another_model_under_the_name_is_refused(
    bundle: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    repository = tmp_path / "repository"
    export(bundle, repository, FIXED)
    folder = tmp_path_factory.mktemp("wide")
    world.write(folder, {"model.py": NET.replace("64", "32")})
    data = spec(inputs={"x": world.tensor("batch", "rows", 32)}, deploy={"triton": FIXED})
    with pytest.raises(BundleError, match="another one") as caught:
        export_triton(write(folder, data), repository, lambda message: None)
    assert "64" in str(caught.value.got)
    assert "32" in str(caught.value.got)
    assert not (repository / "net" / "2").exists()


def test_a_broken_configuration_there_is_named(bundle: Path, tmp_path: Path) -> None:
    place = tmp_path / "repository" / "net"
    place.mkdir(parents=True)
    (place / "config.pbtxt").write_text("name: ")
    with pytest.raises(BundleError, match="can't be read"):
        export(bundle, tmp_path / "repository", FIXED)


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


def test_without_the_client_library_the_install_line_is_given(
    bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "tritonclient.grpc", None)
    assert "pip install 'megacompile[triton]'" in refused(bundle, tmp_path / "repository", FIXED)


def test_requests_are_joined_by_shape_and_split_again() -> None:
    seen: list[tuple[int, ...]] = []

    def run(feeds: Any) -> Any:
        seen.append(feeds["x"].shape)
        if feeds["x"].shape[1] == 3:
            raise ValueError("three")
        return {"y": feeds["x"] * 2}

    requests = [
        {"x": np.full((rows, width), index, np.float32)}
        for index, (rows, width) in enumerate([(1, 4), (2, 4), (1, 3), (1, 5), (1, 3)])
    ]
    answers = answer(run, requests, batched=True)
    assert seen == [(3, 4), (2, 3), (1, 3), (1, 3), (1, 5)]
    for index in (0, 1, 3):
        one = answers[index]
        assert isinstance(one, dict)
        np.testing.assert_array_equal(one["y"], 2 * requests[index]["x"])
    assert [str(answers[index]) for index in (2, 4)] == ["ValueError: three"] * 2
