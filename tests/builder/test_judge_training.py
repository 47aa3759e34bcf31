"""Which training step wins, and in what words."""

from __future__ import annotations

import pytest

from megacompile.builder.judge_training import choose_training, gates_of_training, point_of
from megacompile.measure.statistics import AAResult
from megacompile.report.figures import Metric, Ratio
from megacompile.report.model import Candidate
from megacompile.spec import Budget, load_spec
from tests.builder.races import candidate, measured
from tests.builder.training_world import SPECS
from tests.report.training_samples import figures, training_record

SURE = AAResult(1.0, 0.99, 1.01, True, 0.02)


def trained(name: str, ms: float, activations: float, ratio: float | None) -> Candidate:
    """A candidate beside a plain step of 3100 ms and 1881 MB."""
    interval = None
    if ratio is not None:
        interval = Ratio(median=ratio, low=ratio - 0.01, high=ratio + 0.01)
    optimised = figures(ms, activations, 5.4)
    record = training_record().model_copy(
        update={
            "optimised": optimised,
            "step_time_ratio": interval,
            "memory_ratio": optimised.peak_memory_mb / 1881,
            "largest_batch": None,
        }
    )
    return candidate(name, training=record)


SMALL, FAST = trained("small", 3700, 400, 1.2), trained("fast", 2500, 900, 0.8)


@pytest.mark.parametrize(("budget", "winner"), [({}, "small"), ({"peak_memory": 0.95}, "fast")])
def test_least_memory_wins_unless_memory_has_a_limit(budget: dict[str, float], winner: str) -> None:
    found = choose_training([SMALL, FAST], Budget(**budget), SURE)
    assert found[:2] == ("improved", winner)


def test_the_sentence_of_a_winner() -> None:
    sentence = choose_training([SMALL], Budget(), SURE)[2]
    assert sentence == (
        "small needs 0.64 of the plain step's peak memory (0.38 of its activations) and 1.20 "
        "times its time (95 % interval 1.19 to 1.21); the worst gradient has a cosine of 0.99993."
    )


def test_neither_smaller_nor_faster_is_no_improvement() -> None:
    same = trained("same", 3100, 1069, 1.0)
    verdict, winner, sentence = choose_training([same], Budget(), SURE)
    assert (verdict, winner) == ("no_improvement", None)
    assert sentence.startswith("No candidate needs less memory or time than the plain step")


def test_faster_alone_is_an_improvement() -> None:
    assert choose_training([trained("fast", 2500, 1069, 0.8)], Budget(), SURE)[1] == "fast"
    # Within the machine's noise it is none.
    noisy = AAResult(1.0, 0.7, 1.3, True, 0.3)
    assert choose_training([trained("fast", 2500, 1069, 0.8)], Budget(), noisy)[1] is None


def test_a_time_limit_that_can_not_be_judged_names_no_winner() -> None:
    untimed = trained("untimed", 3000, 400, None)
    noisy = AAResult(1.3, 1.2, 1.4, False, 0.3, "the machine is too noisy")
    verdict, winner, sentence = choose_training([untimed], Budget(step_time=1.1), noisy)
    assert (verdict, winner) == ("no_improvement", None)
    assert sentence.endswith("step_time can't be said: the machine is too noisy.")
    assert choose_training([untimed], Budget(), noisy)[1] == "untimed"
    assert "no step time is claimed" in choose_training([untimed], Budget(), noisy)[2]


def test_nothing_inside_or_nothing_built() -> None:
    broken = candidate("broken", status="failed", reason="it broke")
    assert choose_training([broken], Budget(), None)[0] == "failed"
    outside = candidate("outside", status="outside_budget")
    assert choose_training([broken, outside], Budget(), None)[0] == "outside_budget"


def test_every_limit_is_held_against_the_step() -> None:
    budget = Budget(
        peak_memory=0.6, step_time=1.2, gradient_cosine=0.999, size_mb=1, metric_drop=0.1
    )
    mine = SMALL.model_copy(update={"size_bytes": 2_000_000, "metric": {"loss": Metric(value=1)}})
    assert mine.training is not None
    found = gates_of_training(budget, mine.training, mine, {"loss": Metric(value=1.05)})
    assert {gate.name: gate.passed for gate in found} == {
        "metric_drop": True,
        "peak_memory": False,
        "step_time": True,
        "gradient_cosine": True,
        "size_mb": False,
    }
    (memory,) = [gate for gate in found if gate.name == "peak_memory"]
    assert memory.note == "1881.0 to 1211.0 MB"
    untimed = trained("untimed", 1, 1, None).training
    assert untimed is not None
    assert gates_of_training(Budget(step_time=1), untimed, mine, {}) == []


def test_a_step_is_the_one_point_of_its_race() -> None:
    spec = load_spec(SPECS / "digits_train.yaml").spec
    assert spec is not None
    assert spec.train is not None
    plain, mine = measured("plain", 10.0), measured("mine", 5.0, 900.0)
    found = point_of(spec, mine, figures(5.0, 100.0, 1.0), plain, SURE)
    assert found.dims == {"batch_size": spec.train.batch_size}
    assert found.speedup is not None
    assert found.speedup.median == pytest.approx(2)
    assert found.peak_memory_mb == 911.0, "the step's own, not the process's"
