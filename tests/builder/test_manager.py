"""Steps of a candidate: stored, done again, dumped, refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import megacompile
from tests.builder.inference_world import options, write


def test_a_pass_without_effect_is_an_error(tmp_path: Path) -> None:
    spec = write(tmp_path, {"bad": ["own.py:Nothing"]})
    (candidate,) = megacompile.build(spec, options(tmp_path)).report.candidates
    assert "'nothing' changed 0 of 1 modules" in str(candidate.reason)
    assert "not of the right kind" in str(candidate.reason)


def test_what_is_stored_and_what_is_done_again(tmp_path: Path) -> None:
    def cached(value: int, **more: Any) -> list[bool]:
        passes = [{"own.py:Same": {"value": value}}, "simplify"]
        found = megacompile.build(write(tmp_path, {"v": passes}), options(tmp_path, **more))
        (candidate,) = found.report.candidates
        assert candidate.lowering is not None
        return [s.cached for s in [*candidate.steps, candidate.lowering]]

    assert not any(cached(1))
    assert all(cached(1))
    assert not any(cached(2))  # the first step's option changed: all after it depends on it
    assert not any(cached(1, resume=False))
    # A damaged entry is built again.
    for file in (tmp_path / "cache" / "entries").glob("*/*/form/model.onnx"):
        file.write_bytes(file.read_bytes()[:-1] + b"\0")
    assert not all(cached(1))
    assert all(cached(1))
    # Weights beside the model changed, the Python file did not.
    (tmp_path / "bias.txt").write_text("3.5")
    assert not any(cached(1))


def test_dump_writes_every_form(tmp_path: Path) -> None:
    spec = write(tmp_path, {"v": ["own.py:Same", "simplify"]})
    megacompile.build(spec, options(tmp_path, dump=tmp_path / "dump"))
    names = sorted(p.name for p in (tmp_path / "dump" / "v-onnxruntime").iterdir())
    assert names == ["00-same-Eager", "01-export-Exported", "02-to-onnx-Onnx", "03-simplify-Onnx"]
