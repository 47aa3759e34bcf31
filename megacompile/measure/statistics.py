"""What measured times and metrics allow to be said, and what they don't.

A ratio here is always baseline time over the other's time: above 1 means faster.

Sources: the percentile bootstrap is Efron, "Bootstrap methods: another look at the jackknife"
(1979). The moving-block bootstrap is Künsch, "The jackknife and the bootstrap for general
stationary observations" (1989); its block length for a first-order autoregression follows
Carlstein (1986), with the factor for overlapping blocks of Künsch. The binomial standard error
at an observed share of 0 or 1 is that of Agresti and Coull (1998). That a process has its own
constant speed, so that a process must also race itself, is Kalibera and Jones, "Rigorous
benchmarking in reasonable time" (2013).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from megacompile.errors import DataError

Verdict = Literal["faster", "slower", "no difference"]
Floats = NDArray[np.float64]

# Two processes of the same engine differ in memory layout and page placement alone.
PROCESS_ALLOWANCE: Final = 0.02
# An A/A interval wider than this on one side says nothing about any speed-up of interest.
WIDEST_USEFUL: Final = 0.10
# Below this many rounds the bootstrap has too few distinct resamples to be believed.
BOOTSTRAP_ROUNDS: Final = 6
# The range of n values misses the true median with probability 2**(1-n): 6 % at five rounds.
CLAIM_ROUNDS: Final = 5
_TAILS: Final = (0.025, 0.975)


@dataclass(frozen=True)
class Percentiles:
    """Latencies of one engine in milliseconds, and how many there were (`count`)."""

    p50: float
    p95: float
    p99: float
    mean: float
    count: int


@dataclass(frozen=True)
class RatioInterval:
    """The median of paired ratios (baseline over other) and its 95 % interval.

    `rounds` is the number of pairs; None when the interval comes from elsewhere, then
    `significant` trusts it as it is.
    """

    median: float
    low: float
    high: float
    rounds: int | None = None


@dataclass(frozen=True)
class AAResult:
    """The baseline raced against a second process of itself.

    `noise_floor` is the deviation from 1 that a claimed speed-up must exceed.
    """

    ratio: float
    low: float
    high: float
    passed: bool
    noise_floor: float
    note: str | None = None


@dataclass(frozen=True)
class MetricEstimate:
    """A metric's value with its sampling error (one standard error; None when unknown)."""

    value: float
    standard_error: float | None
    samples: int | None
    higher_is_better: bool = True


def percentiles(latencies_ms: Sequence[float] | Floats) -> Percentiles:
    """Median, 95th and 99th percentile and mean in ms. ValueError for none or non-finite ones."""
    values = _finite(latencies_ms, "latencies")
    p50, p95, p99 = np.percentile(values, (50, 95, 99))
    return Percentiles(float(p50), float(p95), float(p99), float(values.mean()), values.size)


def thin(latencies: Sequence[float] | Floats, count: int = 200) -> list[float]:
    """At most `count` latencies that draw the same distribution: evenly spaced quantiles.

    The smallest and the largest stay in, so that a tail isn't hidden. Sorted, same unit.
    """
    if count < 2:
        raise ValueError(f"thin keeps at least the two extremes, not {count}")
    values = _finite(latencies, "latencies")
    if values.size <= count:
        return [float(value) for value in np.sort(values)]
    return [float(value) for value in np.quantile(values, np.linspace(0.0, 1.0, count))]


def paired_ratio(
    baseline: Sequence[float] | Floats,
    other: Sequence[float] | Floats,
    seed: int = 0,
    resamples: int = 2000,
) -> RatioInterval:
    """The median of baseline over other, round by round, with a 95 % bootstrap interval.

    Entry i of both comes from the same round, so that slow drift of the machine cancels. The
    rounds are resampled, in blocks when neighbouring ratios clearly resemble each other. With
    fewer than six rounds the interval is the whole range of the ratios.
    ValueError for unequal lengths, no rounds, and times that aren't positive and finite.
    """
    over, under = _positive(baseline, "baseline"), _positive(other, "other")
    if over.size != under.size:
        raise ValueError(f"rounds don't pair up: {over.size} of baseline, {under.size} of other")
    ratios = over / under
    median, rounds = float(np.median(ratios)), ratios.size
    if rounds < BOOTSTRAP_ROUNDS:
        return RatioInterval(median, float(ratios.min()), float(ratios.max()), rounds)
    indices = _resample(rounds, resamples, _block_length(ratios), np.random.default_rng(seed))
    low, high = np.quantile(np.median(ratios[indices], axis=1), _TAILS)
    return RatioInterval(median, min(float(low), median), max(float(high), median), rounds)


def aa_check(
    first: Sequence[float] | Floats, second: Sequence[float] | Floats, seed: int = 0
) -> AAResult:
    """Judge the measuring itself: block medians of two processes of the same engine, by round.

    Fails when the interval excludes 1 by more than what two processes may differ by, or when
    it's too wide to say anything. ValueError as in `paired_ratio`.
    """
    ratio = paired_ratio(first, second, seed)
    widest_side = max(ratio.high - ratio.median, ratio.median - ratio.low)
    half_width = (ratio.high - ratio.low) / 2
    note = None
    if ratio.rounds is not None and ratio.rounds < CLAIM_ROUNDS:
        note = f"only {ratio.rounds} rounds: too few to tell noise from a difference"
    elif ratio.low > 1 + PROCESS_ALLOWANCE or ratio.high < 1 - PROCESS_ALLOWANCE:
        note = (
            f"two processes of the same engine differ by {ratio.median - 1:+.1%}, "
            f"more than the {PROCESS_ALLOWANCE:.0%} that processes may differ by"
        )
    elif widest_side > WIDEST_USEFUL:
        note = (
            f"the interval [{ratio.low:.3f}, {ratio.high:.3f}] is too wide: "
            "the machine is too noisy to compare anything"
        )
    floor = max(PROCESS_ALLOWANCE, abs(ratio.median - 1), half_width)
    return AAResult(ratio.median, ratio.low, ratio.high, note is None, floor, note)


def significant(ratio: RatioInterval, noise_floor: float) -> Verdict:
    """Claim a difference only when the whole interval lies beyond 1 plus or minus the floor."""
    if ratio.rounds is not None and ratio.rounds < CLAIM_ROUNDS:
        return "no difference"
    if ratio.low > 1 + noise_floor:
        return "faster"
    if ratio.high < 1 - noise_floor:
        return "slower"
    return "no difference"


def metric_from(
    value: object,
    samples_seen: int | None = None,
    higher_is_better: bool = True,
    *,
    name: str = "metric",
) -> MetricEstimate:
    """A metric with its standard error, from one number or from one score per sample.

    One number: the standard error is binomial when it lies within [0, 1] and `samples_seen` is
    known, otherwise unknown. Scores: their mean and the standard error of the mean. Arrays and
    tensors are welcome. DataError, naming the metric, for anything that isn't finite numbers.
    """
    scores = _scores(value, name)
    if scores.ndim == 0:
        share = float(scores)
        error = _binomial_error(share, samples_seen)
        return MetricEstimate(share, error, samples_seen, higher_is_better)
    spread = float(scores.std(ddof=1)) / math.sqrt(scores.size) if scores.size > 1 else None
    return MetricEstimate(float(scores.mean()), spread, scores.size, higher_is_better)


def relative_drop(original: float, candidate: float, higher_is_better: bool = True) -> float:
    """How much worse the candidate is, as a share of the original; negative when better.

    An original of exactly 0 gives no scale: the plain difference is returned then, which for
    shares and accuracies is the drop in points.
    """
    worse = original - candidate if higher_is_better else candidate - original
    return worse / abs(original) if original != 0 else worse


def _finite(values: Sequence[float] | Floats, what: str) -> Floats:
    array = np.asarray(values, dtype=np.float64).reshape(-1)
    if array.size == 0:
        raise ValueError(f"no {what}")
    if not np.isfinite(array).all():
        raise ValueError(f"{what} hold a value that isn't finite")
    return array


def _positive(values: Sequence[float] | Floats, what: str) -> Floats:
    array = _finite(values, f"times of {what}")
    if (array <= 0).any():
        raise ValueError(f"times of {what} must be above 0")
    return array


def _block_length(ratios: Floats) -> int:
    """Rounds to draw together: 1 unless the lag-1 autocorrelation is clear.

    Of the ranks, because a single spike hides the autocorrelation of the values.
    """
    rounds = ratios.size
    ranks = ratios.argsort(kind="stable").argsort(kind="stable").astype(np.float64)
    if np.ptp(ratios) == 0:
        return 1
    centred = ranks - ranks.mean()
    correlation = float(centred[:-1] @ centred[1:] / (centred @ centred)) + 1 / rounds
    if correlation <= 1.645 / math.sqrt(rounds):  # one-sided 5 % for independent rounds
        return 1
    correlation = min(correlation, 0.95)
    strength = math.sqrt(6) * correlation / (1 - correlation**2)
    length = math.ceil(strength ** (2 / 3) * rounds ** (1 / 3))
    return max(1, min(length, rounds // 3))


def _resample(
    rounds: int, resamples: int, block: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Indices of shape (resamples, rounds), in runs of `block` that wrap around at the end.

    Wrapping around gives the first and last rounds the same chance as the others.
    """
    runs = math.ceil(rounds / block)
    starts = generator.integers(0, rounds, size=(resamples, runs, 1))
    indices = (starts + np.arange(block)) % rounds
    return indices.reshape(resamples, -1)[:, :rounds]


def _scores(value: object, name: str) -> Floats:
    """The metric's value as an array of zero or one dimensions."""
    plain: Any = value
    if hasattr(plain, "detach"):  # a torch tensor: any device, any dtype, with or without grad
        plain = plain.detach().cpu().tolist()
    if isinstance(plain, bool):
        raise _bad_metric(name, "a single true/false", value)
    try:
        array = np.asarray(plain)
    except ValueError as error:
        raise _bad_metric(name, "scores of unequal lengths", value) from error
    if array.size == 0:
        raise _bad_metric(name, "no scores at all", value)
    if array.dtype.kind not in "biuf":
        raise _bad_metric(name, f"a {type(value).__name__} that isn't a number", value)
    if array.ndim > 1:
        raise _bad_metric(name, f"an array of shape {array.shape}", value)
    numbers = array.astype(np.float64)
    if not np.isfinite(numbers).all():
        bad = int((~np.isfinite(numbers)).sum())
        raise _bad_metric(name, f"{bad} of {numbers.size} values NaN or infinite", value)
    return numbers


def _bad_metric(name: str, got: str, value: object) -> DataError:
    shown = repr(value)
    return DataError(
        what=f"metric '{name}' can't be used",
        expected="a finite number, or a list of finite numbers with one score per sample",
        got=f"{got}: {shown if len(shown) <= 80 else shown[:77] + '...'}",
        remedy="return a float, or one float per sample, for this key of evaluate's result",
    )


def _binomial_error(share: float, samples: int | None) -> float | None:
    if not samples or not 0 <= share <= 1:
        return None
    if 0 < share < 1:
        return math.sqrt(share * (1 - share) / samples)
    # All right or all wrong isn't certainty: two successes and two failures are added.
    nudged = (share * samples + 2) / (samples + 4)
    return math.sqrt(nudged * (1 - nudged) / (samples + 4))
