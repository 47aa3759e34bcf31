"""The order in which engines take turns while they are timed.

Every round gives each engine one block of calls, in an order that is shuffled anew, so that
drift of the machine (clock speed, neighbours) hits all of them alike and no engine always runs
after the same rival. Interleaving and shuffling follow Mytkowicz et al., "Producing wrong data
without doing anything obviously wrong" (2009).

No processes here: an engine is anything that can time a block of its own calls.
"""

from __future__ import annotations

import math
import random
import statistics as plain_statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from megacompile.errors import WorkerError
from megacompile.measure.statistics import paired_ratio


class Engine(Protocol):
    """What a race needs of a contestant; usually a proxy of a worker process."""

    @property
    def name(self) -> str: ...

    def warm_up(self) -> object: ...

    def time_block(self, iterations: int) -> list[float]:
        """The latency of each of `iterations` calls, in milliseconds."""
        ...


@dataclass(frozen=True)
class Schedule:
    """When a race at one benchmark point ends, and how long a turn is.

    `time_limit_s` ends the race once `minimum_rounds` are done; narrow intervals end it once
    `settled_rounds` are done; `maximum_rounds` ends it anyway. `narrow` is the full width of
    an interval relative to its median. `pause_s` is longer than idle threads spin (see
    `machine.thread_environment`), so that a worker is quiet when the next one's turn begins.
    """

    block_ms: float = 60.0
    maximum_iterations: int = 200
    minimum_rounds: int = 12
    settled_rounds: int = 15
    maximum_rounds: int = 60
    time_limit_s: float = 30.0
    narrow: float = 0.02
    pause_s: float = 0.012
    resamples: int = 500


DEFAULT: Final = Schedule()


@dataclass
class EngineTimes:
    """One engine's times in ms. Entry i of `block_medians` belongs to round i of the race.

    An engine that failed keeps what it had before and the `error` that took it out.
    """

    name: str
    iterations: int = 0
    latencies_ms: list[float] = field(default_factory=list)
    block_medians_ms: list[float] = field(default_factory=list)
    error: Exception | None = None


@dataclass(frozen=True)
class Race:
    """All engines' times by name, in the order they were given, and why the race ended."""

    times: dict[str, EngineTimes]
    rounds: int
    ended: str


def race(
    engines: Sequence[Engine],
    schedule: Schedule = DEFAULT,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Race:
    """Time all engines in shuffled, interleaved rounds; the first engine is the baseline.

    An engine that raises is taken out and keeps its error; the others go on. ValueError for no
    engines or for two of the same name.
    """
    times = {engine.name: EngineTimes(engine.name) for engine in engines}
    if not engines or len(times) != len(engines):
        raise ValueError(f"engines need distinct names: {[engine.name for engine in engines]}")
    order, baseline = random.Random(seed), times[engines[0].name]
    for engine in engines:
        _attempt(times[engine.name], partial(_prepare, engine, times, schedule))
    started, rounds, ended = clock(), 0, ""
    while not ended:
        running = [engine for engine in engines if times[engine.name].error is None]
        if not running:
            return Race(times, rounds, "no engine is left")
        order.shuffle(running)
        for engine in running:
            _attempt(times[engine.name], partial(_turn, engine, times))
            sleep(schedule.pause_s)
        rounds += 1
        ended = _ended(times, baseline, rounds, clock() - started, schedule)
    return Race(times, rounds, ended)


def choose_iterations(latency_ms: float, schedule: Schedule) -> int:
    """Calls per block so that a block takes about `block_ms`."""
    return max(1, min(schedule.maximum_iterations, round(schedule.block_ms / latency_ms)))


def _attempt(record: EngineTimes, turn: Callable[[], None]) -> None:
    try:
        turn()
    # Any failure of one contestant, of whatever type, must not end the race of the others;
    # it isn't lost: the caller reports it from the record.
    except Exception as error:  # noqa: BLE001
        record.error = error


def _prepare(engine: Engine, times: dict[str, EngineTimes], schedule: Schedule) -> None:
    """Warm up, and choose the iterations from a second look: the first call is often slower."""
    engine.warm_up()
    first = choose_iterations(_median(engine, _block(engine, 1)), schedule)
    if first > 1:
        first = choose_iterations(_median(engine, _block(engine, min(first, 10))), schedule)
    times[engine.name].iterations = first


def _turn(engine: Engine, times: dict[str, EngineTimes]) -> None:
    """One block. Its first call finds the caches full of the rival's data and isn't kept."""
    record = times[engine.name]
    settling = 1 if record.iterations > 1 else 0
    latencies = _block(engine, record.iterations + settling)[settling:]
    record.block_medians_ms.append(_median(engine, latencies))
    record.latencies_ms.extend(latencies)


def _block(engine: Engine, iterations: int) -> list[float]:
    latencies = engine.time_block(iterations)
    usable = all(math.isfinite(latency) and latency > 0 for latency in latencies)
    if len(latencies) != iterations or not usable:
        raise WorkerError(
            what=f"engine '{engine.name}' gave times that can't be used",
            expected=f"{iterations} positive latencies in ms",
            got=f"{len(latencies)} of them, the first {latencies[:3]}",
            audience="megacompile",
        )
    return latencies


def _median(engine: Engine, latencies: Sequence[float]) -> float:
    return plain_statistics.median(latencies)


def _ended(
    times: dict[str, EngineTimes],
    baseline: EngineTimes,
    rounds: int,
    elapsed_s: float,
    schedule: Schedule,
) -> str:
    """Why the race is over, or an empty text."""
    if rounds >= schedule.maximum_rounds:
        return "maximum rounds"
    if rounds >= schedule.minimum_rounds and elapsed_s >= schedule.time_limit_s:
        return "time limit"
    if rounds >= schedule.settled_rounds and _settled(times, baseline, schedule):
        return "intervals narrow"
    return ""


def _settled(times: dict[str, EngineTimes], baseline: EngineTimes, schedule: Schedule) -> bool:
    """Every running engine's ratio to the baseline is known to within `narrow`."""
    others = [entry for entry in times.values() if entry.error is None and entry is not baseline]
    if baseline.error is not None or not others:
        return False
    for entry in others:
        ratio = paired_ratio(
            baseline.block_medians_ms, entry.block_medians_ms, resamples=schedule.resamples
        )
        if (ratio.high - ratio.low) / ratio.median >= schedule.narrow:
            return False
    return True
