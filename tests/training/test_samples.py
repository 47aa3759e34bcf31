"""Numbered samples: read once, batched by shape, and chosen by their losses without bias."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from megacompile.errors import DataError
from megacompile.training.samples import Sampler, Samples, open_samples

HOOKS = """
import numpy as np, torch

def pieces():
    for size in (3, 5, 3):
        x = np.arange(2 * size, dtype=np.float32).reshape(2, size)
        yield {"x": x, "y": np.array([size, size])}

def endless():
    while True:
        yield {"x": np.ones((4, 2), dtype=np.float32)}

class Rows(torch.utils.data.Dataset):
    def __len__(self): return 10
    def __getitem__(self, index): return {"x": np.full(3, index)}

def rows(): return Rows()
def nothing(): return iter(())
def number(): return 3
"""


@pytest.fixture
def hooks(tmp_path: Path) -> Path:
    (tmp_path / "data.py").write_text(HOOKS)
    return tmp_path


def test_samples_of_one_shape_make_a_group(hooks: Path) -> None:
    samples = open_samples("data.py:pieces", hooks, 100)
    assert len(samples) == 6
    assert samples.groups == [[0, 1, 4, 5], [2, 3]]
    batch = samples.take([4, 1])
    assert batch["x"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert batch["y"].tolist() == [3, 3]


def test_an_endless_stream_is_read_up_to_the_limit(hooks: Path) -> None:
    assert len(open_samples("data.py:endless", hooks, 10)) == 10


def test_a_dataset_is_read_where_it_is_asked(hooks: Path) -> None:
    samples = open_samples("data.py:rows", hooks, 7)
    assert len(samples) == 7
    assert samples.take([6, 2])["x"][:, 0].tolist() == [6, 2]


def test_stored_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(6).reshape(3, 2))
    assert open_samples("npz:a.npz", tmp_path, 100).take([1])["x"].tolist() == [[2, 3]]


@pytest.mark.parametrize(
    ("name", "words"), [("nothing", "is empty"), ("number", "gives no batches")]
)
def test_what_gives_no_samples_is_named(hooks: Path, name: str, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        open_samples(f"data.py:{name}", hooks, 10)
    assert name in caught.value.what


def test_every_epoch_has_every_sample_once_in_another_order() -> None:
    sampler = Sampler([[0, 1, 2, 3, 4], [7, 8]], 2, seed=0)
    assert sampler.batches_per_epoch == 4
    epochs = [[sampler.next()[0] for _ in range(4)] for _ in range(2)]
    for epoch in epochs:
        assert sorted(n for batch in epoch for n in batch) == [0, 1, 2, 3, 4, 7, 8]
        assert all(set(batch) <= {0, 1, 2, 3, 4} or set(batch) <= {7, 8} for batch in epoch)
    assert epochs[0] != epochs[1]


def test_by_losses_the_worst_come_oftener_and_weigh_less() -> None:
    sampler = Sampler([list(range(10))], 10, seed=0, by_loss=True)
    losses = torch.ones(10)
    losses[3] = 9.0
    sampler.learn(list(range(10)), losses)
    seen = torch.zeros(10)
    mean = []
    for _ in range(400):
        numbers, weights = sampler.next()
        for number in numbers:
            seen[number] += 1
        mean.append(float((losses[numbers] * weights).mean()))
    share = seen / seen.sum()
    assert share[3] == pytest.approx(0.9 * 0.5 + 0.01, abs=0.03)
    assert min(share) > 0.02, "none is forgotten"
    # The weighted mean is that of all samples: the choice doesn't change what is minimised.
    assert np.mean(mean) == pytest.approx(float(losses.mean()), rel=0.03)


def test_a_sampler_goes_on_where_it_was() -> None:
    def fresh() -> Sampler:
        return Sampler([list(range(20))], 3, seed=1, by_loss=True)

    one, other = fresh(), fresh()
    for sampler in (one,):
        sampler.learn([1, 2], torch.tensor([3.0, 1.0]))
        sampler.next()
    other.load_state_dict(one.state_dict())
    assert [one.next()[0] for _ in range(5)] == [other.next()[0] for _ in range(5)]


def test_a_sample_that_raises_names_the_users_line(tmp_path: Path) -> None:
    class Broken:
        def __len__(self) -> int:
            return 2

        def __getitem__(self, index: int) -> Any:
            raise KeyError("pixels")

    with pytest.raises(DataError, match="batches 'x' raises"):
        Samples(Broken(), [], "batches 'x'").take([0])
