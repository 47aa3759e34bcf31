"""What a build leaves behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megacompile.builder.job import Outcome
from megacompile.builder.products import _part, serving_sources
from megacompile.engines.loading import here
from megacompile.errors import SpecError
from megacompile.plan.planner import make_plan
from megacompile.spec import Spec, load_spec_data


def spec(folder: Path, **parts: Any) -> Spec:
    data = {
        "name": "net",
        "model": {"onnx": "m.onnx"},
        "inputs": {"x": {"shape": [2, 3]}},
        "backends": ["onnxruntime"],
        **parts,
    }
    found = load_spec_data(data, folder).spec
    assert found is not None
    return found


def test_steps_for_serving_come_with_what_they_import(tmp_path: Path) -> None:
    for name, text in {
        "before.py": "import numbers_of\ndef parse(text): ...\n",
        "numbers_of.py": "from deeper import A\n",
        "deeper.py": "A = 1\n",
        "unused.py": "",
    }.items():
        (tmp_path / name).write_text(text)
    step = {"python": "before.py:parse", "inputs": {"t": {"dtype": "string", "shape": [1]}}}
    served = spec(tmp_path, deploy={"triton": {"preprocess": step}})
    names = [path.name for path in serving_sources(served, tmp_path)]
    assert names == ["before.py", "deeper.py", "numbers_of.py"]
    assert serving_sources(spec(tmp_path), tmp_path) == []
    (tmp_path / "before.py").unlink()
    with pytest.raises(SpecError, match=r"no such file 'before\.py'"):
        serving_sources(served, tmp_path)


def test_an_engine_of_an_unfinished_bundle_carries_the_promise_of_its_passes(
    tmp_path: Path,
) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    data = {
        "name": "net",
        "model": {"onnx": "m.onnx"},
        "inputs": {"x": {"shape": [2, 3]}},
        "backends": ["openvino"],
        "variants": {"bf16": {"passes": [{"cast": {"dtype": "bfloat16"}}]}, "plain": {}},
    }
    plan = make_plan(load_spec_data(data, tmp_path), lambda _: here(threads=2))
    lossy, plain = plan.candidates
    engine = {"precision": "bfloat16", "needs_isa": ["avx512_bf16"]}
    part = _part(Outcome(lossy, engine=engine), baseline=False)
    assert (part.name, part.folder) == ("bf16/openvino", "candidates/bf16-openvino")
    assert (part.effect, part.dtype) == (lossy.effect.value, "bfloat16")
    assert part.needs_isa == ("avx512_bf16",)
    assert part.make_backend() == lossy.backend
    part = _part(Outcome(plain, engine=engine), baseline=True)
    assert (part.name, part.folder) == ("openvino", "candidates/baseline-openvino")
    assert (part.effect, part.dtype) == ("EXACT", "float32")
