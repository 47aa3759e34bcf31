"""Samples of the user's calibration hook: up to the number wanted, checked one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megacompile.errors import DataError
from megacompile.measure.calibration import calibration_hash, calibration_samples, hash_of
from megacompile.models import Feeds, base_signature
from megacompile.spec import Spec
from tests.measure.toys import make_spec


def spec_with(folder: Path, text: str, samples: int = 2) -> Spec:
    (folder / "c.py").write_text(f"import numpy as np\n{text}\n")
    source = {"python": "c.py:samples", "samples": samples}
    return make_spec(folder, data={"calibration": source})


def samples_of(folder: Path, text: str, samples: int = 2) -> list[Feeds]:
    spec = spec_with(folder, text, samples)
    return calibration_samples(spec, folder, base_signature(spec))


ONE = "{'x': np.ones((1, 4), np.float32)}"


@pytest.mark.parametrize(
    "text",
    [
        f"def samples():\n    while True: yield {ONE}",
        f"samples = [{ONE}] * 5",
        f"class samples:\n    def __iter__(self): return iter([{ONE}] * 5)",
    ],
)
def test_as_many_as_are_wanted_from_whatever_gives_them(text: str, tmp_path: Path) -> None:
    found = samples_of(tmp_path, text)
    assert [one["x"].tolist() for one in found] == [[[1, 1, 1, 1]]] * 2


def test_without_a_hook_there_are_none(tmp_path: Path) -> None:
    spec = make_spec(tmp_path)
    assert calibration_samples(spec, tmp_path, base_signature(spec)) == []
    assert calibration_hash(spec, tmp_path, base_signature(spec)) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("samples = []", ["is empty", "up to 2 dicts"]),
        (f"samples = [{ONE}, 3]", ["sample 1 of", "is no dict", "got: int"]),
        ("samples = [{'z': 1}]", ["sample 0 of", "unknown input 'z'"]),
        ("samples = [{'x': np.full((1, 4), np.nan, np.float32)}]", ["NaN", "input 'x'"]),
        ("def samples():\n    raise OSError('gone')", ["c.py:3", "OSError: gone"]),
        (f"def samples():\n    yield {ONE}\n    raise OSError('gone')", ["c.py:4", "gone"]),
    ],
)
def test_samples_that_can_not_be_used(text: str, words: list[str], tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        samples_of(tmp_path, text)
    for word in ["data.calibration 'c.py:samples'", *words]:
        assert word in str(caught.value)


def test_the_hash_is_of_values_shapes_dtypes_and_names() -> None:
    x = np.zeros((2, 3), np.float32)
    others = [{"x": x + 1}, {"x": x.reshape(3, 2)}, {"x": x.astype(np.int32)}, {"z": x}]
    hashes = {hash_of([one]) for one in [{"x": x}, *others]}
    assert len(hashes) == 5
    strided = {"x": np.asfortranarray(x)}
    assert hash_of([strided]) == hash_of([{"x": x}])
    assert hash_of([]) is None
