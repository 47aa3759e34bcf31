"""The original tried and recorded: what is known of it, and what is wrong with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megacompile.errors import DataError, ModelError
from megacompile.measure.original import examine, read_record
from tests.measure.toys import make_spec


def test_what_is_recorded(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    found = examine(spec, tmp_path, tmp_path)
    assert (found.form, found.reference) == ("Eager", "m.py:Plain")
    assert (found.parameters, found.size_bytes) == (15, 60)
    assert found.outputs == ["y", "norm"]
    assert found.output_dtypes == ["float32", "float32"]
    signature = found.signature(spec)
    assert signature.structure == {"dict": {n: {"tensor": n} for n in ("y", "norm")}}
    assert read_record(tmp_path) == found
    assert read_record(tmp_path).input_sets()[0].label == "the typical sizes"


def test_input_sets_are_of_all_sizes_with_the_originals_answers(tmp_path: Path) -> None:
    sets = examine(make_spec(tmp_path), tmp_path, tmp_path).input_sets()
    rows = {one.label: len(one.feeds["x"]) for one in sets}
    assert rows == {
        "the typical sizes": 2,
        "the min sizes": 1,
        "the max sizes": 16,
        "the odd sizes": 3,
    }
    assert [one.heavy for one in sets] == [False, False, True, False]
    assert not any(one.real for one in sets)
    for one in sets:
        expected = np.linalg.norm(one.feeds["x"], axis=1)
        np.testing.assert_allclose(one.reference["norm"], expected, rtol=1e-5)


def test_sets_of_fixed_sizes_differ_in_their_values(tmp_path: Path) -> None:
    spec = make_spec(tmp_path, dims={}, inputs={"x": {"shape": [2, 4]}})
    first, second = examine(spec, tmp_path, tmp_path).input_sets()
    assert (first.label, second.label) == ("the typical sizes", "the odd sizes")
    assert not np.array_equal(first.feeds["x"], second.feeds["x"])


def test_calibration_samples_are_kept_and_are_real(tmp_path: Path) -> None:
    data = {"calibration": {"python": "m.py:calibration", "samples": 2}}
    found = examine(make_spec(tmp_path, data=data), tmp_path, tmp_path)
    assert [one["x"].tolist() for one in found.calibration()] == [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    real = [one for one in found.input_sets() if one.real]
    assert [one.label for one in real] == ["calibration sample 0", "calibration sample 1"]
    assert found.calibration_hash is not None


def test_without_calibration_a_step_that_asks_is_told_what_to_add(tmp_path: Path) -> None:
    found = examine(make_spec(tmp_path), tmp_path, tmp_path)
    with pytest.raises(DataError, match=r"add data\.calibration"):
        next(found.calibration())


@pytest.mark.parametrize(
    ("model", "sections", "words"),
    [
        ("Random", {}, ["different answers to the same input", "torch.rand"]),
        ("Counting", {}, ["a call changes the model itself", "buffer 'calls' is mutated"]),
        ("Remembering", {}, ["a call changes the model itself", "an attribute changes"]),
        ("Writing", {}, ["writes into its input 'x'"]),
        ("Narrow", {}, ["forward at the min sizes (n=1)"]),
        ("Plain", {"outputs": ["y", "norn"]}, ["no tensor named 'norn'", "did you mean 'norm'"]),
    ],
)
def test_what_is_wrong_with_a_model(
    model: str, sections: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ModelError) as caught:
        examine(make_spec(tmp_path, model, **sections), tmp_path, tmp_path)
    for word in words:
        assert word in str(caught.value)
