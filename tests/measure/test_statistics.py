"""Simulated races: how often is a difference claimed that isn't there, or missed that is?"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megacompile.errors import DataError
from megacompile.measure.statistics import (
    RatioInterval,
    aa_check,
    metric_from,
    paired_ratio,
    percentiles,
    relative_drop,
    significant,
    thin,
)

times = st.floats(min_value=1e-3, max_value=1e5)


def race(generator, speeds, rounds=30, noise=0.02):
    """Block medians per process: shared drift, own noise, spikes, a constant per process."""
    drift = np.cumsum(generator.normal(0, 0.01, rounds))
    blocks = []
    for speed in speeds:
        own = generator.normal(0, noise, rounds)
        spikes = np.where(generator.random(rounds) < 0.05, generator.uniform(0.1, 0.6, rounds), 0)
        blocks.append(5.0 / speed * np.exp(drift + own + spikes + generator.normal(0, 0.005)))
    return blocks


def verdict(generator, speed, rounds=30):
    first, second, candidate = race(generator, (1.0, 1.0, speed), rounds)
    check = aa_check(first, second)
    if not check.passed:
        return "withheld"
    return significant(paired_ratio(first, candidate), check.noise_floor)


@pytest.mark.parametrize("rounds", [12, 30])
def test_equal_engines_are_almost_never_called_different(rounds):
    generator = np.random.default_rng(1)
    verdicts = [verdict(generator, 1.0, rounds) for _ in range(400)]
    assert sum(v in ("faster", "slower") for v in verdicts) < 0.025 * 400
    assert verdicts.count("withheld") < 0.05 * 400


@pytest.mark.parametrize(("speed", "expected"), [(1.1, "faster"), (1 / 1.1, "slower")])
def test_a_true_difference_of_ten_percent_is_found(speed, expected):
    generator = np.random.default_rng(2)
    assert sum(verdict(generator, speed) == expected for _ in range(400)) > 0.9 * 400


@pytest.mark.parametrize("rounds", [6, 12, 15, 30, 60])
def test_the_interval_covers_the_truth_as_often_as_it_says(rounds):
    generator = np.random.default_rng(3)
    covered = 0
    for seed in range(400):
        baseline, other = np.exp(generator.normal(0, 0.03, (2, rounds)))
        ratio = paired_ratio(baseline, other, seed, resamples=500)
        covered += ratio.low <= 1 <= ratio.high
    assert 0.90 <= covered / 400 <= 0.99


def test_autocorrelated_ratios_get_a_wider_interval_than_the_same_ratios_shuffled():
    generator = np.random.default_rng(4)
    wider = 0
    for _ in range(50):
        drift = np.zeros(60)
        for index in range(1, 60):
            drift[index] = 0.8 * drift[index - 1] + generator.normal(0, 0.02)
        ratios = np.exp(drift)
        together = paired_ratio(ratios, np.ones(60))
        apart = paired_ratio(generator.permutation(ratios), np.ones(60))
        wider += together.high - together.low > apart.high - apart.low
    assert wider > 45


@given(st.lists(st.tuples(times, times), min_size=1, max_size=70))
def test_the_interval_holds_its_median_and_stays_within_the_ratios(pairs):
    baseline, other = zip(*pairs, strict=True)
    ratios = np.array(baseline) / np.array(other)
    ratio = paired_ratio(baseline, other, resamples=100)
    slack = 1 + 1e-12
    assert ratios.min() / slack <= ratio.low <= ratio.median <= ratio.high <= ratios.max() * slack
    assert ratio.rounds == len(pairs)


@given(st.lists(times, min_size=6, max_size=40), st.floats(min_value=0.1, max_value=10))
def test_a_constant_factor_is_found_exactly(baseline, factor):
    ratio = paired_ratio(baseline, [value / factor for value in baseline], resamples=100)
    assert [ratio.low, ratio.median, ratio.high] == pytest.approx([factor] * 3)


def test_equal_seeds_give_equal_intervals():
    blocks = race(np.random.default_rng(5), (1.0, 1.2))
    assert paired_ratio(*blocks, seed=7) == paired_ratio(*blocks, seed=7)


def test_few_rounds_give_the_whole_range_and_no_claim_below_five():
    ratio = paired_ratio([2, 3, 4], [1, 1, 1])
    assert (ratio.low, ratio.median, ratio.high) == (2, 3, 4)
    assert significant(ratio, 0.02) == "no difference"
    assert significant(paired_ratio([2] * 5, [1] * 5), 0.02) == "faster"
    assert not aa_check([1.0], [1.0]).passed


@pytest.mark.parametrize(
    ("baseline", "other"), [([], []), ([1], [1, 2]), ([0], [1]), ([1], [math.nan])]
)
def test_times_that_make_no_ratio_are_refused(baseline, other):
    with pytest.raises(ValueError, match=r"no times|pair up|above 0|finite"):
        paired_ratio(baseline, other)


def test_a_process_that_is_slower_than_itself_fails_the_check_and_says_why():
    check = aa_check(np.full(20, 1.0), np.full(20, 1.05))
    assert not check.passed
    assert "-4.8%" in (check.note or "")
    assert check.noise_floor == pytest.approx(1 - 1 / 1.05)


def test_a_machine_too_noisy_to_tell_fails_the_check():
    noise = np.exp(np.random.default_rng(6).normal(0, 0.6, (2, 20)))
    check = aa_check(*noise)
    assert not check.passed
    assert "noisy" in (check.note or "") or "differ" in (check.note or "")


def test_a_small_process_difference_passes_and_raises_the_noise_floor():
    check = aa_check(np.full(20, 1.0), np.full(20, 0.985))
    assert check.passed
    assert check.noise_floor == pytest.approx(0.02)
    assert significant(RatioInterval(1.03, 1.01, 1.05), check.noise_floor) == "no difference"
    assert significant(RatioInterval(1.03, 1.021, 1.05), check.noise_floor) == "faster"
    assert significant(RatioInterval(0.9, 0.89, 0.979), check.noise_floor) == "slower"


@given(st.lists(times, min_size=1, max_size=1000), st.integers(2, 300))
def test_thinned_latencies_keep_the_extremes_and_the_order(latencies, count):
    kept = thin(latencies, count)
    assert len(kept) == min(count, len(latencies))
    assert kept == sorted(kept)
    assert (kept[0], kept[-1]) == pytest.approx((min(latencies), max(latencies)))


def test_percentiles_are_ordered_and_counted():
    found = percentiles(list(range(1, 101)))
    assert (found.p50, found.p95, found.p99) == pytest.approx((50.5, 95.05, 99.01))
    assert (found.mean, found.count) == (50.5, 100)


def test_a_share_gets_a_binomial_error_and_other_numbers_none():
    assert metric_from(0.5, 100).standard_error == pytest.approx(0.05)
    assert metric_from(0.5, None).standard_error is None
    assert metric_from(31.2, 100).standard_error is None
    perfect = metric_from(1.0, 100).standard_error
    assert perfect is not None
    assert 0 < perfect < 0.03


def test_scores_give_their_mean_and_its_error():
    found = metric_from([1.0, 0.0, 1.0, 0.0], 999, higher_is_better=False)
    assert (found.value, found.samples, found.higher_is_better) == (0.5, 4, False)
    assert found.standard_error == pytest.approx(1 / math.sqrt(12))
    assert metric_from(np.array([True, False])).value == 0.5
    assert metric_from([3.0]).standard_error is None
    assert metric_from(np.float32(2.0)).value == 2.0


def test_tensors_of_any_dtype_are_scores_too():
    torch = pytest.importorskip("torch")
    scores = torch.tensor([1.0, 3.0], dtype=torch.bfloat16, requires_grad=True)
    assert metric_from(scores).value == 2.0


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        [],
        [1.0, math.nan],
        "0.5",
        None,
        True,
        {"a": 1},
        [[1.0]],
        [[1], [1, 2]],
        1j,
        ["0.5"],
    ],
)
def test_a_value_that_is_no_metric_is_refused_by_name(value):
    with pytest.raises(DataError, match="recall@1"):
        metric_from(value, 10, name="recall@1")


def test_a_drop_is_positive_when_worse_whichever_way_is_better():
    assert relative_drop(0.8, 0.6) == pytest.approx(0.25)
    assert relative_drop(0.8, 1.0) == pytest.approx(-0.25)
    assert relative_drop(2.0, 3.0, higher_is_better=False) == pytest.approx(0.5)
    assert relative_drop(-2.0, -3.0) == pytest.approx(0.5)


def test_a_zero_original_is_compared_in_plain_units():
    assert relative_drop(0.0, 0.0) == 0
    assert relative_drop(0.0, 0.01, higher_is_better=False) == pytest.approx(0.01)
    assert relative_drop(0.0, 0.5) == pytest.approx(-0.5)
