"""Which candidate wins, by how much, and in what words."""

from __future__ import annotations

import pytest

from megacompile.builder import judge
from megacompile.builder.judge import Race
from megacompile.measure.session import AGAIN
from megacompile.measure.statistics import AAResult
from megacompile.report.figures import Metric
from megacompile.report.model import Gate
from megacompile.spec import Budget
from tests.builder.races import baseline, candidate, measured, point, ratio

PASSED = AAResult(1.0, 0.99, 1.01, True, 0.02)
FAILED = AAResult(1.2, 1.1, 1.3, False, 0.2, "two processes of the same engine differ by +20.0%")


def race_of(again_ms: float = 10.0) -> Race:
    """The first baseline at 10 ms, and a second process of it."""
    first = measured("eager", 10.0)
    everyone = {"eager": first, "eager" + AGAIN: measured("eager" + AGAIN, again_ms)}
    return Race.of([{"n": 4}], [4], first, everyone)


def test_a_candidate_gets_its_figures() -> None:
    mine = candidate("fast")
    rival = measured("torch.compile", 8.0)
    judge.judge_candidate(race_of(), Budget(), mine, measured("fast", 4.0, 120.0), rival, {})
    (found,) = mine.points
    assert found.dims == {"n": 4}
    assert found.latency_ms.p50 == pytest.approx(4.01)
    assert found.latency_ms.count == 36
    assert found.throughput == pytest.approx(4000 / 4.01)
    assert found.speedup is not None
    assert found.speedup.median == pytest.approx(2.5)
    assert found.peak_memory_mb == 120.0
    assert mine.versus_best_baseline is not None
    assert mine.versus_best_baseline.median == pytest.approx(2.0)
    assert mine.status == "built"


def test_no_speedup_is_quoted_where_the_machine_can_not_be_trusted() -> None:
    race = race_of(again_ms=12.0)
    assert race.check is not None
    assert not race.check.passed
    mine = candidate("fast")
    budget = Budget(speedup=2)
    judge.judge_candidate(race, budget, mine, measured("fast", 4.0), measured("eager", 10.0), {})
    assert mine.points[0].speedup is None
    assert mine.versus_best_baseline is None
    assert mine.gates == [], "there is nothing to hold against the limit"
    verdict, winner, sentence = judge.choose([mine], [baseline("eager", 10)], race.check)
    assert (verdict, winner) == ("no_improvement", None)
    assert sentence.startswith("No speed-up is claimed: two processes of the same engine")


def test_outside_the_budget_with_the_reason() -> None:
    mine = candidate("slow", size_bytes=3_000_000)
    budget = Budget(latency_ms=2, size_mb=2, peak_memory_mb=500)
    judge.judge_candidate(race_of(), budget, mine, measured("slow", 4.0, 120.0), None, {})
    assert mine.status == "outside_budget"
    assert mine.reason == "outside the budget in size_mb, latency_ms"


def test_a_failed_candidate_is_left_as_it_is() -> None:
    mine = candidate("broken", status="failed", reason="it broke")
    judge.judge_candidate(race_of(), Budget(latency_ms=1), mine, None, None, {})
    assert (mine.status, mine.reason, mine.gates) == ("failed", "it broke", [])


def test_a_baseline_is_not_compared_with_itself() -> None:
    race, first, other = race_of(), baseline("eager", 1), baseline("torch.compile", 1)
    judge.judge_baseline(race, first, race.first)
    judge.judge_baseline(race, other, measured("torch.compile", 5.0))
    assert first.points[0].speedup is None
    assert other.points[0].speedup is not None
    assert other.points[0].speedup.median == pytest.approx(2.0)


def test_the_fastest_significantly_faster_one_wins() -> None:
    fast = candidate("fast", point(4, ratio(2.5)), versus_best_baseline=ratio(2.0))
    fast.metric = {"accuracy": Metric(value=0.9)}
    faster = candidate("outside", point(1, ratio(10)), status="outside_budget")
    baselines = [baseline("eager", 10, accuracy=0.91), baseline("torch.compile", 8)]
    verdict, winner, sentence = judge.choose([faster, fast], baselines, PASSED)
    assert (verdict, winner) == ("improved", "fast")
    assert sentence == (
        "fast is 2.50 times as fast as eager (95 % interval 2.49 to 2.51) at n 4 and 2.00 times "
        "as fast as the best baseline, torch.compile; accuracy 0.91 to 0.9."
    )


def test_what_lies_within_the_noise_is_no_improvement() -> None:
    mine = candidate("same", point(9.9, ratio(1.02)))
    verdict, winner, sentence = judge.choose([mine], [baseline("eager", 10)], PASSED)
    assert (verdict, winner) == ("no_improvement", None)
    assert sentence == (
        "No candidate is significantly faster than eager; the best, same, runs at 1.02 times its "
        "speed (95 % interval 1.01 to 1.03)."
    )


def test_a_faster_baseline_is_no_improvement() -> None:
    mine = candidate("fast", point(5, ratio(2)), versus_best_baseline=ratio(0.8))
    baselines = [baseline("eager", 10), baseline("torch.compile", 4)]
    verdict, winner, sentence = judge.choose([mine], baselines, PASSED)
    assert (verdict, winner) == ("no_improvement", None)
    assert "The unchanged model on torch.compile is faster than every candidate" in sentence
    assert "runs at 0.80 times its speed" in sentence


def test_the_nearest_to_the_budget_is_named() -> None:
    def gate(name: str, value: float | None, passed: bool) -> Gate:
        return Gate(name=name, limit=0.5, value=value, passed=passed)

    far = candidate("far", point(1), status="outside_budget")
    far.gates = [gate("size_mb", 9, False), gate("cosine", 0.1, False)]
    near = candidate("near", point(9), status="outside_budget")
    near.gates = [gate("size_mb", 0.6, False), gate("cosine", 0.9, True)]
    found = judge.choose([far, near], [baseline("eager", 10)], PASSED)
    assert found == (
        "outside_budget",
        None,
        "Nothing is inside the budget; nearest is near, outside in size_mb 0.6 (limit 0.5).",
    )


def test_what_could_not_be_built_or_run() -> None:
    broken = candidate("broken", status="failed", reason="it broke")
    found = judge.choose([broken], [], None)
    assert found == ("failed", None, "Nothing could be built; broken: it broke")
    assert judge.choose([], [], None)[2] == "There was no candidate to build."
    waiting = candidate("cross", executed=False)
    verdict, winner, sentence = judge.choose([broken, waiting], [], None)
    assert (verdict, winner) == ("built_not_executed", None)
    assert sentence.startswith("cross is built and not executed")
    assert judge.choose([waiting, waiting], [], None)[2].startswith("2 candidates are built")


def test_without_a_baseline_nothing_is_claimed() -> None:
    verdict, winner, sentence = judge.choose([candidate("only", point(1))], [], None)
    assert (verdict, winner) == ("no_improvement", None)
    assert sentence.endswith("the fastest is only.")
