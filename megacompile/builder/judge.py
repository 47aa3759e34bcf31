"""Which candidate wins, and in what words. Pure: figures in, verdict out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from megacompile.measure import (
    AGAIN,
    AAResult,
    EngineTimes,
    Measured,
    RatioInterval,
    aa_check,
    paired_ratio,
    percentiles,
    relative_drop,
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
                latency_ms=Latency(
                    p50=taken.p50, p95=taken.p95, p99=taken.p99, mean=taken.mean, count=taken.count
                ),
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


def gates_of(budget: Budget, candidate: Candidate, original: Mapping[str, Metric]) -> list[Gate]:
    """Every limit of the budget held against a candidate that was built and measured."""
    gates: list[Gate] = []
    first = candidate.points[0] if candidate.points else None
    if budget.metric_drop is not None:
        gates.append(metric_gate(budget.metric_drop, candidate.metric, original))
    error = candidate.lowering.error if candidate.lowering else None
    if budget.cosine is not None:
        gates.append(
            least(
                "cosine",
                budget.cosine,
                error.cosine_min if error else None,
                error.note if error else None,
            )
        )
    if error is not None:
        gates.append(
            Gate(
                name="dead_channels",
                limit=0,
                value=len(error.dead_channels),
                passed=not error.dead_channels,
            )
        )
    if budget.size_mb is not None:
        size = candidate.size_bytes / 1e6 if candidate.size_bytes is not None else None
        gates.append(most("size_mb", budget.size_mb, size))
    if not candidate.executed:
        return gates  # time and memory are judged where the engine can run
    # Without a speed-up (the A/A check failed) there is nothing to hold against the limit; no
    # winner is named then.
    if budget.speedup is not None and first is not None and first.speedup is not None:
        gates.append(least("speedup", budget.speedup, first.speedup.low))
    if budget.latency_ms is not None:
        gates.append(most("latency_ms", budget.latency_ms, first.latency_ms.p50 if first else None))
    if budget.peak_memory_mb is not None:
        gates.append(
            most("peak_memory_mb", budget.peak_memory_mb, first.peak_memory_mb if first else None)
        )
    return gates


def metric_gate(
    limit: float, metrics: Mapping[str, Metric], original: Mapping[str, Metric]
) -> Gate:
    """The worst relative loss of any metric."""
    worst, name = float("-inf"), None
    for key, before in original.items():
        after = metrics.get(key)
        if after is None:
            return Gate(
                name="metric_drop",
                limit=limit,
                value=None,
                passed=False,
                note=f"'{key}' was not measured",
            )
        drop = relative_drop(before.value, after.value, before.higher_is_better)
        if drop > worst:
            worst, name = drop, key
    if name is None:
        return Gate(name="metric_drop", limit=limit, value=None, passed=False, note="no metric")
    return Gate(
        name="metric_drop",
        limit=limit,
        value=worst,
        passed=worst <= limit,
        note=f"{name}: {original[name].value:.4g} to {metrics[name].value:.4g}",
    )


def least(name: str, limit: float, value: float | None, note: str | None = None) -> Gate:
    """A gate that a value passes when it is at least the limit."""
    passed = value is not None and value >= limit
    return Gate(name=name, limit=limit, value=value, passed=passed, note=note)


def most(name: str, limit: float, value: float | None, note: str | None = None) -> Gate:
    """A gate that a value passes when it is at most the limit."""
    passed = value is not None and value <= limit
    return Gate(name=name, limit=limit, value=value, passed=passed, note=note)


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
        return (
            "no_improvement",
            None,
            (
                f"No candidate is significantly faster than {first}; "
                f"the best, {best.name}, runs at {_times(speedup)} its speed{shown}."
            ),
        )
    rival = best_baseline(baselines)
    against = best.versus_best_baseline
    if rival and against and significant(_interval(against), floor) == "slower":
        return (
            "no_improvement",
            None,
            (
                f"The unchanged model on {rival.name} is faster than every candidate; "
                f"the best, {best.name}, runs at {_times(against)} its speed."
            ),
        )
    return "improved", best.name, _winner_sentence(best, first, rival, baselines)


def best_baseline(baselines: Sequence[Baseline]) -> Baseline | None:
    running = [b for b in baselines if b.points]
    return min(running, key=lambda b: b.points[0].latency_ms.p50, default=None)


def _interval(ratio: Ratio) -> RatioInterval:
    return RatioInterval(ratio.median, ratio.low, ratio.high)


def _winner_sentence(
    best: Candidate, first: str, rival: Baseline | None, baselines: Sequence[Baseline]
) -> str:
    point = best.points[0]
    assert point.speedup is not None
    at = ", ".join(f"{n} {s}" for n, s in point.dims.items())
    text = (
        f"{best.name} is {_times(point.speedup)} as fast as {first} "
        f"({_shown(point.speedup)})" + (f" at {at}" if at else "")
    )
    if rival and rival.name != first and best.versus_best_baseline:
        text += (
            f" and {_times(best.versus_best_baseline)} as fast as the best baseline, {rival.name}"
        )
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
    best = min(
        outside,
        key=lambda c: (
            sum(not g.passed for g in c.gates),
            c.points[0].latency_ms.p50 if c.points else 0,
        ),
    )
    broken = [
        f"{g.name} {g.value:.4g} (limit {g.limit:.4g})"
        if g.value is not None and g.limit is not None
        else g.name
        for g in best.gates
        if not g.passed
    ]
    return f"Nothing is inside the budget; nearest is {best.name}, outside in {', '.join(broken)}."


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
