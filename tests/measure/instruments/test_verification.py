"""A step's answers against the original's: recorded always, enforced as far as it promised."""

from __future__ import annotations

import numpy as np
import pytest

from megacompile.errors import ModelError, VerificationError
from megacompile.measure.instruments.verification import (
    Verification,
    enforce,
    record_of,
    run_all,
)
from megacompile.models import Comparison, Feeds, InputSet
from megacompile.plan import Effect
from tests.measure.instruments.watched import Told, step_run, watch

ANSWER = np.arange(12, dtype=np.float32).reshape(4, 3) + 1
SETS = [InputSet("the typical sizes", {"x": np.zeros((2, 5), np.float32)}, {"y": ANSWER})]


def test_the_right_answer_is_recorded() -> None:
    run = step_run(Told({"y": ANSWER}))
    watch(Verification(SETS), run)
    assert run.record.error is not None
    assert (run.record.error.max_abs, run.record.error.inputs) == (0, 1)


def test_a_wrong_answer_is_recorded_and_raises() -> None:
    run = step_run(Told({"y": ANSWER + 1}))
    with pytest.raises(VerificationError, match="'lib:fold' broke its promise"):
        watch(Verification(SETS), run)
    assert run.record.error is not None
    assert run.record.error.max_abs == 1


def test_a_lossy_step_may_be_wrong_but_not_dead() -> None:
    watch(Verification(SETS), step_run(Told({"y": ANSWER + 1}), Effect.LOSSY))
    dead = np.broadcast_to(ANSWER[:1], ANSWER.shape)
    many = [InputSet(str(n), {}, {"y": ANSWER}) for n in range(3)]
    with pytest.raises(VerificationError, match=r"3 output channels(.|\n)*quantize per channel"):
        watch(Verification(many), step_run(Told({"y": dead}), Effect.LOSSY))


def test_a_step_that_did_not_get_through_is_left_alone() -> None:
    run = step_run()
    watch(Verification(SETS), run)
    assert run.record.error is None


def test_a_model_that_can_not_be_run_is_named_with_its_shapes() -> None:
    def broken(feeds: Feeds) -> Feeds:
        raise RuntimeError("size mismatch\nmore")

    with pytest.raises(VerificationError) as caught:
        run_all(SETS, broken)
    assert "can't be run on the typical sizes" in str(caught.value)
    assert "x [2, 5]" in str(caught.value)
    assert "RuntimeError: size mismatch" in str(caught.value)
    assert "more" not in str(caught.value)

    def ours(feeds: Feeds) -> Feeds:
        raise ModelError(what="ours")

    with pytest.raises(ModelError, match="ours"):
        run_all(SETS, ours)


@pytest.mark.parametrize(
    ("effect", "expected", "remedy"),
    [
        (Effect.EXACT, "the same numbers up to float rounding", "leave 'fold' out"),
        (Effect.NUMERIC, "rounding of float16", "keep more of the model in float32"),
        (Effect.LOSSY, "finite values and living channels", "quantize per channel"),
    ],
)
def test_each_promise_has_its_words(effect: Effect, expected: str, remedy: str) -> None:
    with pytest.raises(VerificationError) as caught:
        enforce(Comparison(failures=["output 'y' is missing"]), effect, "float16", "fold")
    assert caught.value.expected == expected
    assert caught.value.got == "output 'y' is missing"
    assert remedy in str(caught.value.remedy)
    enforce(Comparison(), effect, "float16", "fold")


def test_the_record_shows_real_data_and_says_so() -> None:
    found = Comparison(cosine_min=0.5, cosine_real=0.99, dead_channels=["y[0]"] * 60)
    record = record_of(found, emulated=True)
    assert record.cosine_min == 0.99
    assert len(record.dead_channels) == 50
    assert "made-up inputs: 0.5000" in str(record.note)
    assert "float16 was emulated" in str(record.note)
    assert record_of(Comparison(cosine_min=0.99, cosine_real=0.99)).note is None


def test_each_promise_has_its_tolerance() -> None:
    near = Comparison(cosine_min=0.9995, excess="output 'y': 2 instead of 1")
    with pytest.raises(VerificationError, match="2 instead of 1"):
        enforce(near, Effect.EXACT, "float16", "fold")
    with pytest.raises(VerificationError, match=r"below 0\.99999 for float32"):
        enforce(near, Effect.NUMERIC, "float32", "fold")
    enforce(near, Effect.NUMERIC, "float16", "fold")
    enforce(Comparison(cosine_min=-1.0), Effect.LOSSY, "float32", "fold")
