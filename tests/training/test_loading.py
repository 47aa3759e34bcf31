"""Numbered samples fetched by workers: the same batches, and whose fault it is when they end."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import random
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from megacompile.errors import DataError
from megacompile.training.loading import collate, drawn, endless_batches, tensor_of
from tests.training.loaded import DATASET, made


@pytest.mark.parametrize("body", ["os.kill(os.getpid(), signal.SIGKILL)", "os._exit(3)"])
def test_a_worker_that_dies_is_named(tmp_path: Path, body: str) -> None:
    found = made(tmp_path, DATASET.format(body=body), batch_size=5, workers=1)
    with pytest.raises(DataError) as caught:
        next(iter(found))
    assert "worker process" in str(caught.value)
    assert "workers: 0" in str(caught.value)


def test_a_worker_that_dies_during_a_step_does_not_hit_the_step(tmp_path: Path) -> None:
    """It fetches two ahead, so it dies while the step computes: the next wait must say so."""
    body = "self.calls = getattr(self, 'calls', 0) + 1; self.calls == 5 and os._exit(3)"
    stream = iter(made(tmp_path, DATASET.format(body=body), batch_size=1, workers=1))
    taken = [next(stream)["y"].item() for _ in range(3)]
    assert len(set(taken)) == 3
    [worker] = multiprocessing.active_children()
    until = time.monotonic() + 60
    while Path(f"/proc/{worker.pid}/stat").read_text().split()[2] != "Z":  # the step
        assert time.monotonic() < until
    with pytest.raises(DataError, match="worker process"):
        next(stream)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_a_sample_names_its_line(tmp_path: Path, workers: int) -> None:
    body = "if index == 7:\n            raise LookupError(f'no sample {index}')"
    found = made(tmp_path, DATASET.format(body=body), batch_size=5, workers=workers)
    with pytest.raises(DataError) as caught:
        list(itertools.islice(found, 2))
    assert "data.py:10: train.batches 'data.py:batches' raises" in str(caught.value)
    assert "LookupError: no sample 7" in str(caught.value)


def test_what_is_drawn_is_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    text = DATASET.format(body="").replace(
        '"y": index', '"y": [torch.rand(()).item(), np.random.rand(), random.random()]'
    )
    found = []
    for workers in (0, 1, 3):
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        stream = made(tmp_path, text, batch_size=4, workers=workers)
        batches = list(itertools.islice(stream, 6))
        found.append(torch.cat([batch["y"] for batch in batches]))
        again = torch.cat([batch["y"] for batch in itertools.islice(stream, 6)])
        assert torch.equal(again, found[-1])
        after = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        assert torch.equal(before[0], after[0]), "the step's own generator stays as it was"
        assert before[1:] == after[1:]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert found[0].unique().numel() == 6 * 4 * 3


def test_workers_live_over_the_ends_of_epochs(tmp_path: Path) -> None:
    text = DATASET.format(body="").replace('"y": index', '"y": os.getpid()')
    found = made(tmp_path, text, batch_size=4, workers=2)
    stream = iter(found)
    pids = {int(p) for batch in itertools.islice(stream, 10) for p in batch["y"]}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert pids == {worker.pid for worker in multiprocessing.active_children()}
    del stream
    gc.collect()
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ('"y": [0] * (1 + index % 2)', ["'y' is not alike", "int64 [1]", "int64 [2]"]),
        ('("y" if index % 2 else "z"): 0', ["differ in their names"]),
        ('"y": 1.0 if index % 2 else 0', ["'y' is not alike", "float64 []"]),
    ],
)
@pytest.mark.parametrize("workers", [0, 1])
def test_samples_that_do_not_fit_together(
    tmp_path: Path, changed: str, words: list[str], workers: int
) -> None:
    text = DATASET.format(body="").replace('"y": index', changed)
    with pytest.raises(DataError) as caught:
        list(itertools.islice(made(tmp_path, text, batch_size=5, workers=workers), 2))
    for word in words:
        assert word in str(caught.value)


def test_the_step_keeps_its_own_generators() -> None:
    torch.manual_seed(1)
    expected = torch.rand(2)
    torch.manual_seed(1)
    with drawn(7):
        inside = torch.rand(2), np.random.rand(), random.random()
    assert torch.equal(torch.rand(2), expected)
    with drawn(7 + 2**32):
        again = torch.rand(2), np.random.rand(), random.random()
    assert torch.equal(inside[0], again[0]), "seeds are of 32 bits"
    assert inside[1:] == again[1:]


def test_a_batch_may_reach_over_the_end_of_an_epoch() -> None:
    dataset = [{"y": number} for number in range(5)]
    stream = itertools.islice(endless_batches(dataset, 3, seed=0, label="data"), 5)
    numbers = [int(one) for batch in stream for one in batch["y"]]
    for epoch in range(3):
        assert sorted(numbers[5 * epoch : 5 * epoch + 5]) == list(range(5))
    assert len(numbers) == 15


@pytest.mark.parametrize("value", ["text", [None, 1], np.array(["2020-01-01"], "datetime64[D]")])
def test_what_is_no_array_of_numbers_is_refused(value: object) -> None:
    with pytest.raises(DataError, match="'x' is no array of numbers"):
        tensor_of(value, "'x'")


def test_a_sample_that_is_no_dict_is_named() -> None:
    with pytest.raises(DataError, match=r"a sample of data is no dict(.|\n)*got: tuple"):
        collate([(1, 2)], "data")
