"""Fake engines on a fake clock: who runs when, when it ends, and what a failure leaves."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest

from megacompile.errors import WorkerError
from megacompile.measure.rounds import Schedule, choose_iterations, race


@dataclass
class Clock:
    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Fake:
    name: str
    latency_ms: float
    clock: Clock = field(default_factory=Clock)
    noise: float = 0.0
    fails_at: int | None = None
    log: list[str] = field(default_factory=list)
    generator: random.Random = field(init=False)
    blocks: int = 0

    def __post_init__(self) -> None:
        self.generator = random.Random(self.name)  # two engines must not share their noise

    def warm_up(self) -> None:
        self.log.append(f"warm {self.name}")

    def time_block(self, iterations: int) -> list[float]:
        self.blocks += 1
        self.log.append(self.name)
        if self.blocks == self.fails_at:
            raise RuntimeError("out of memory")
        factors = [math.exp(self.generator.gauss(0, self.noise)) for _ in range(iterations)]
        latencies = [self.latency_ms * factor for factor in factors]
        self.clock.now += sum(latencies) / 1e3
        return latencies


def run(*engines: Fake, seed: int = 0, **options: float):
    clock = engines[0].clock
    for engine in engines:
        engine.clock = clock
    return race(engines, Schedule(**options), seed, clock, clock.sleep)  # type: ignore[arg-type]


def test_quiet_engines_settle_at_fifteen_rounds():
    result = run(Fake("eager", 3.0), Fake("fast", 1.0))
    assert (result.rounds, result.ended) == (15, "intervals narrow")
    assert result.times["eager"].iterations == 20
    assert result.times["fast"].iterations == 60
    assert len(result.times["fast"].latencies_ms) == 15 * 60
    assert result.times["fast"].block_medians_ms == [1.0] * 15


def test_noisy_engines_go_on_to_the_maximum():
    result = run(Fake("a", 60, noise=0.3), Fake("b", 60, noise=0.3), time_limit_s=1e9)
    assert (result.rounds, result.ended) == (60, "maximum rounds")


def test_the_time_limit_holds_after_twelve_rounds():
    result = run(Fake("a", 900, noise=0.3), Fake("b", 900, noise=0.3), time_limit_s=5)
    assert (result.rounds, result.ended) == (12, "time limit")


def test_every_round_has_everyone_once_in_an_order_that_the_seed_decides():
    def order(seed: int) -> list[str]:
        log: list[str] = []
        run(*(Fake(name, 60.0, log=log) for name in "abc"), seed=seed)
        start = len(log) - 3 * 15
        return ["".join(log[at : at + 3]) for at in range(start, len(log), 3)]

    rounds = order(1)
    assert all(sorted(names) == ["a", "b", "c"] for names in rounds)
    assert len(set(rounds)) > 3
    assert rounds == order(1) != order(2)


def test_a_failure_takes_one_engine_out_and_keeps_its_error():
    result = run(Fake("a", 60), Fake("bad", 60, fails_at=5), Fake("c", 60))
    bad = result.times["bad"]
    assert isinstance(bad.error, RuntimeError)
    assert len(bad.block_medians_ms) == 5 - 1 - 1  # one block chose the iterations
    assert len(result.times["c"].block_medians_ms) == result.rounds == 15


def test_the_others_go_on_without_the_baseline():
    result = run(Fake("base", 60, fails_at=1), Fake("b", 60), maximum_rounds=20)
    assert result.times["base"].block_medians_ms == []
    assert len(result.times["b"].block_medians_ms) == 20


def test_a_race_nobody_is_left_in_ends():
    assert run(Fake("a", 60, fails_at=3)).ended == "no engine is left"


@pytest.mark.parametrize("latency", [math.nan, -1.0, 0.0])
def test_times_that_make_no_sense_are_a_workers_failure(latency):
    assert isinstance(run(Fake("a", latency)).times["a"].error, WorkerError)


def test_names_must_differ():
    with pytest.raises(ValueError, match="distinct"):
        run(Fake("a", 1), Fake("a", 1))


@pytest.mark.parametrize(("latency", "expected"), [(1e-3, 200), (3.0, 20), (59, 1), (1e4, 1)])
def test_a_block_takes_about_sixty_ms(latency, expected):
    assert choose_iterations(latency, Schedule()) == expected
