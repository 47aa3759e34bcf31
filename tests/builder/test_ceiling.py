"""How close a winner comes to the machine's ceilings."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from megacompile.builder import ceiling
from megacompile.builder.ceiling import ceiling_of, machine_ceilings
from megacompile.engines.loading import here
from megacompile.measure.ceilings import Ceilings
from megacompile.report.model import Ceiling
from megacompile.system.cache import Cache
from tests.builder.races import candidate, point

RATES = {"float32": 1e12, "int8": 4e12}
BANDWIDTH = 1e10


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceiling, "machine_ceilings", lambda *arguments: Ceilings(RATES, BANDWIDTH))


def found(winner: Any, operations: float | None = 2e9, moved: float | None = 4e6) -> Ceiling:
    needs = {"operations": operations, "bytes_moved": moved}
    return ceiling_of(needs, winner, here(), Cache(Path("nowhere")), lambda message: None)


@pytest.mark.usefixtures("known")
def test_operations_set_the_floor() -> None:
    one = found(candidate("fp32", point(4), precision="float32"))
    assert (one.dtype, one.bound) == ("float32", "compute")
    assert one.floor_ms == pytest.approx(2.0)
    assert one.reached == pytest.approx(0.5)


@pytest.mark.usefixtures("known")
def test_bytes_shrink_with_the_precision() -> None:
    one = found(candidate("int8", point(4), precision="int8"), operations=4e8, moved=4e7)
    assert (one.dtype, one.bound) == ("int8", "memory")
    assert one.floor_ms == pytest.approx(1.0), "a quarter of 4 ms"
    assert one.reached == pytest.approx(0.25)


@pytest.mark.usefixtures("known")
def test_a_precision_without_a_rate_is_held_against_float32() -> None:
    one = found(candidate("fp16", point(4), precision="float16"))
    assert (one.dtype, one.floor_ms) == ("float32", pytest.approx(2.0))


@pytest.mark.usefixtures("known")
def test_a_share_above_one_is_withheld() -> None:
    one = found(candidate("fp32", point(1), precision="float32"))
    assert one.floor_ms == pytest.approx(2.0)
    assert one.reached is None


@pytest.mark.usefixtures("known")
def test_without_a_winner_or_a_count_there_are_only_the_ceilings() -> None:
    winner = candidate("fp32", point(4), precision="float32")
    for one in (found(None), found(candidate("fp32")), found(winner, operations=None)):
        assert (one.rates, one.bandwidth) == (RATES, BANDWIDTH)
        assert one.floor_ms is None
        assert one.reached is None


def test_ceilings_are_measured_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    class Counting:
        def __init__(self, *arguments: Any) -> None: ...

        def __enter__(self) -> Counting:
            return self

        def __exit__(self, *exc: object) -> None: ...

        def ask(self, request: dict[str, int]) -> dict[str, Any]:
            asked.append(request["threads"])
            return {"rates": {"float32": float(len(asked))}, "bandwidth": 1.0}

    monkeypatch.setattr(ceiling, "Worker", Counting)
    machine, cache, said = here(threads=2), Cache(tmp_path), list[str]()
    for _ in range(2):
        assert machine_ceilings(machine, cache, said.append).rates == {"float32": 1.0}
    assert asked == [2]
    assert said == ["measuring this machine's ceilings"]
    assert machine_ceilings(machine, cache, said.append, fresh=True).rates == {"float32": 2.0}
    assert machine_ceilings(machine, cache, said.append).rates == {"float32": 2.0}
    machine_ceilings(dataclasses.replace(machine, threads=3), cache, said.append)
    assert asked == [2, 2, 3]
