"""Which candidate wins, and in what words. Pure: figures in, verdict out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from megacompile.builder.gates import gates_of
from megacompile.measure import (
    AGAIN,
    AAResult,
    EngineTimes,
    Measured,
    RatioInterval,
    aa_check,
    paired_ratio,
    percentiles,
    significant,
    thin,
)
from megacompile.report import (
    AACheck,
    Baseline,
    Candidate,
    Gate,
    Latency,
    Metric,
    Point,
    Ratio,
    Verdict,
)
from megacompile.spec import Budget

Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Race:
    """What every engine of one race is judged by.

    `points` are the sizes, `batch` the samples of one call at each, `first` the baseline that
    speed-ups are quoted against, `checks` its A/A checks.
    """

    points: Sequence[Sizes]
    batch: Sequence[int]
    first: Measured | None
    checks: Sequence[AAResult | None]

    @classmethod
    def of(
        cls,
        points: Sequence[Sizes],
        batch: Sequence[int],
        first: Measured | None,
        measured: Mapping[str, Measured],
    ) -> Race:
        """The race of what was measured; the first baseline ran under a second name too."""
        again = measured.get(first.contestant.name + AGAIN) if first else None
        checks: list[AAResult | None] = [None for _ in points]
        if first is not None and again is not None:
            checks = [
                aa_check(a.block_medians_ms, b.block_medians_ms)
                for a, b in zip(first.times, again.times, strict=False)
            ]
        return cls(points, batch, first, checks)

    @property
    def check(self) -> AAResult | None:
        """The A/A check of the first point."""
        return self.checks[0] if self.checks else None


def judge_baseline(race: Race, baseline: Baseline, one: Measured | None) -> None:
    """Fill in a baseline's figures."""
    if one is not None and one.error is None:
        against = race.first if one is not race.first else None
        baseline.points = points_of(one, race, against)


def judge_candidate(
    race: Race,
    budget: Budget,
    candidate: Candidate,
    one: Measured | None,
    rival: Measured | None,
    original: Mapping[str, Metric],
) -> None:
    """Fill in a built candidate's figures, and hold it against the budget.

    `rival` is the best baseline, `original` the unchanged model's metric.
    """
    if candidate.status != "built" or (candidate.executed and one is None):
        return
    if one is not None:
        candidate.points = points_of(one, race, race.first)
        if rival is not None and one.times and (race.check is None or race.check.passed):
            candidate.versus_best_baseline = ratio_of(rival.times[0], one.times[0])
    candidate.gates = gates_of(budget, candidate, original)
    failed = [gate.name for gate in candidate.gates if not gate.passed]
    if failed:
        candidate.status = "outside_budget"
        candidate.reason = "outside the budget in " + ", ".join(failed)


def aa_record(check: AAResult | None) -> AACheck | None:
    """An A/A check as the report holds it."""
    if check is None:
        return None
    return AACheck(
        ratio=check.ratio, low=check.low, high=check.high, passed=check.passed, note=check.note
    )


def points_of(measured: Measured, race: Race, baseline: Measured | None) -> list[Point]:
    """The record of every point that was raced. Speed-ups are withheld where the A/A check of
    that point failed."""
    found = []
    for number, times in enumerate(measured.times):
        if not times.latencies_ms:
            continue
        taken = percentiles(times.latencies_ms)
        speedup = None
        check = race.checks[number] if number < len(race.checks) else None
        if baseline is not None and (check is None or check.passed):
            speedup = ratio_of(baseline.times[number], times)
        memory = measured.memory[number] if number < len(measured.memory) else None
        found.append(
            Point(
                dims=dict(race.points[number]),
                latency_ms=Latency(**asdict(taken)),
                histogram=[round(v, 5) for v in thin(times.latencies_ms)],
                throughput=1000 * race.batch[number] / taken.p50,
                speedup=speedup,
                peak_memory_mb=memory,
            )
        )
    return found


def ratio_of(baseline: EngineTimes, other: EngineTimes) -> Ratio | None:
    """Baseline time over the other's, by rounds that both ran."""
    rounds = min(len(baseline.block_medians_ms), len(other.block_medians_ms))
    if rounds == 0:
        return None
    found = paired_ratio(baseline.block_medians_ms[:rounds], other.block_medians_ms[:rounds])
    return Ratio(median=found.median, low=found.low, high=found.high)


def choose(
    candidates: Sequence[Candidate], baselines: Sequence[Baseline], check: AAResult | None
) -> tuple[Verdict, str | None, str]:
    """Verdict, winner, and the verdict in one sentence."""
    inside = [c for c in candidates if c.status == "built" and c.points]
    waiting = [c for c in candidates if c.status == "built" and not c.executed]
    if waiting and not inside:
        return "built_not_executed", None, _waiting_sentence(waiting)
    if check is not None and not check.passed and inside:
        return "no_improvement", None, f"No speed-up is claimed: {check.note}."
    if not inside:
        outside = [c for c in candidates if c.status == "outside_budget"]
        if outside:
            return "outside_budget", None, outside_sentence(outside)
        return "failed", None, failed_sentence(candidates)
    best = min(inside, key=lambda c: c.points[0].latency_ms.p50)
    first = next((b.name for b in baselines if b.points), None)
    if first is None:
        text = f"No baseline was raced, so no speed-up can be claimed; the fastest is {best.name}."
        return "no_improvement", None, text
    floor = check.noise_floor if check else 0.02
    speedup = best.points[0].speedup
    if speedup is None or significant(_interval(speedup), floor) != "faster":
        shown = f" ({_shown(speedup)})" if speedup else ""
        text = (
            f"No candidate is significantly faster than {first}; "
            f"the best, {best.name}, runs at {_times(speedup)} its speed{shown}."
        )
        return "no_improvement", None, text
    rival = best_baseline(baselines)
    against = best.versus_best_baseline
    if rival and against and significant(_interval(against), floor) == "slower":
        text = (
            f"The unchanged model on {rival.name} is faster than every candidate; "
            f"the best, {best.name}, runs at {_times(against)} its speed."
        )
        return "no_improvement", None, text
    return "improved", best.name, _winner_sentence(best, first, rival, baselines)


def best_baseline(baselines: Sequence[Baseline]) -> Baseline | None:
    """The fastest at the first point of those that were raced."""
    running = [b for b in baselines if b.points]
    return min(running, key=lambda b: b.points[0].latency_ms.p50, default=None)


def _interval(ratio: Ratio) -> RatioInterval:
    return RatioInterval(ratio.median, ratio.low, ratio.high)


def _winner_sentence(
    best: Candidate, first: str, rival: Baseline | None, baselines: Sequence[Baseline]
) -> str:
    point, against = best.points[0], best.versus_best_baseline
    assert point.speedup is not None
    text = f"{best.name} is {_times(point.speedup)} as fast as {first} ({_shown(point.speedup)})"
    if point.dims:
        text += " at " + ", ".join(f"{name} {size}" for name, size in point.dims.items())
    if rival and rival.name != first and against:
        text += f" and {_times(against)} as fast as the best baseline, {rival.name}"
    original = baselines[0].metric if baselines else {}
    changes = [
        f"{n} {original[n].value:.4g} to {m.value:.4g}"
        for n, m in best.metric.items()
        if n in original
    ]
    return text + (f"; {', '.join(changes)}" if changes else "") + "."


def _waiting_sentence(waiting: Sequence[Candidate]) -> str:
    first, count = waiting[0], len(waiting)
    some = f"{first.name} is" if count == 1 else f"{count} candidates are"
    return (
        f"{some} built and not executed: this machine is not the target. The models they were "
        "built from are verified; megacompile finish, on the target, measures and judges them."
    )


def outside_sentence(outside: Sequence[Candidate]) -> str:
    """What the candidate nearest to the budget breaks."""

    def distance(candidate: Candidate) -> tuple[int, float]:
        latency = candidate.points[0].latency_ms.p50 if candidate.points else 0
        return sum(not gate.passed for gate in candidate.gates), latency

    def shown(gate: Gate) -> str:
        if gate.value is None or gate.limit is None:
            return gate.name
        return f"{gate.name} {gate.value:.4g} (limit {gate.limit:.4g})"

    best = min(outside, key=distance)
    broken = ", ".join(shown(gate) for gate in best.gates if not gate.passed)
    return f"Nothing is inside the budget; nearest is {best.name}, outside in {broken}."


def failed_sentence(candidates: Sequence[Candidate]) -> str:
    """Why the first candidate could not be built."""
    if not candidates:
        return "There was no candidate to build."
    first = candidates[0]
    return f"Nothing could be built; {first.name}: {first.reason}"


def _times(ratio: Ratio | None) -> str:
    return f"{ratio.median:.2f} times" if ratio else "an unknown share of"


def _shown(ratio: Ratio) -> str:
    return f"95 % interval {ratio.low:.2f} to {ratio.high:.2f}"
