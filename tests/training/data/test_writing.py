"""From whatever a reference names to a database."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megacompile.errors import MegacompileError
from megacompile.training.data.lmdb_store import LmdbSamples
from megacompile.training.data.stores import open_dataset
from megacompile.training.data.writing import write_source
from tests.training.data.stored import same

pytest.importorskip("lmdb")


SOURCES = """
import numpy as np
import torch
class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 7
    def __getitem__(self, index):
        return torch.full((2,), float(index)), index
class Singles(torch.utils.data.IterableDataset):
    def __len__(self):
        return 7
    def __iter__(self):
        return ({"x": np.full(2, float(n), np.float32), "y": n} for n in range(7))
def pairs():
    return Pairs()
singles = Singles()
def loader():
    return torch.utils.data.DataLoader(Pairs(), batch_size=3)
def pieces():
    for start in (0, 3, 6):
        rows = np.arange(start, min(start + 3, 7))
        yield {"x": np.repeat(rows[:, None], 2, 1).astype(np.float32), "y": rows, "more": rows}
def raising():
    yield {"x": np.zeros((2, 2))}
    raise KeyError("half way")
def uneven():
    yield {"x": np.zeros((2, 2)), "y": np.zeros(3)}
"""


@pytest.mark.parametrize(
    ("name", "names"),
    [("pairs", ["x", "y"]), ("singles", []), ("loader", ["x", "y"]), ("pieces", ["x", "y"])],
)
@pytest.mark.parametrize("limit", [None, 4])
def test_sources(name: str, names: list[str], limit: int | None, tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(SOURCES)
    events = []

    def listen(event: str, **data: Any) -> None:
        events.append((event, data))

    write_source(f"source.py:{name}", tmp_path, tmp_path / "data", listen, names, limit)
    found = LmdbSamples(tmp_path / "data")
    assert [int(s["y"]) for s in found] == list(range(limit or 7))  # type: ignore[attr-defined]
    assert [s["x"].tolist() for s in found][-1] == [(limit or 7) - 1.0] * 2  # type: ignore[attr-defined]
    assert set(found[0]) == {"x", "y"}
    assert found[0]["x"].dtype == np.float32
    if limit or name == "pairs":
        assert events[-1][0] == "bar"
        assert events[-1][1]["done"] == events[-1][1]["total"] == (limit or 7)


@pytest.mark.parametrize(
    ("reference", "names", "words"),
    [
        ("source.py:pairs", [], ["sample 0", "is no dict", "--names"]),
        ("source.py:pairs", ["x"], ["2 members and 1 names"]),
        ("source.py:pieces", ["x", "mor"], ["no entry 'mor'", "did you mean 'more'"]),
        ("source.py:raising", [], ["source.py:", "KeyError", "half way", "piece 1"]),
        ("source.py:uneven", [], ["different numbers of samples", "x 2, y 3"]),
        ("source.py:piecs", [], ["did you mean 'pieces'"]),
        ("npz:nothing.npz", [], ["no such file"]),
    ],
)
def test_sources_that_can_not_be_used(
    reference: str, names: list[str], words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "source.py").write_text(textwrap.dedent(SOURCES))
    with pytest.raises(MegacompileError) as caught:
        write_source(reference, tmp_path, tmp_path / "data", lambda event, **data: None, names)
    for word in words:
        assert word in str(caught.value)
    assert [p.name for p in tmp_path.iterdir() if p.name != "__pycache__"] == ["source.py"]


def test_arrays_are_written_from_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays/x.npy", np.arange(12.0).reshape(4, 3))
    np.save(tmp_path / "arrays/y.npy", np.arange(4, dtype=np.int16))
    before = {p.name: p.read_bytes() for p in (tmp_path / "arrays").iterdir()}
    write_source("arrays:arrays", tmp_path, tmp_path / "data", lambda event, **data: None)
    stored = LmdbSamples(tmp_path / "data")
    arrays = open_dataset("arrays", tmp_path / "arrays", False)
    assert all(same(stored[n], arrays[n]) for n in range(4))
    assert {p.name: p.read_bytes() for p in (tmp_path / "arrays").iterdir()} == before
