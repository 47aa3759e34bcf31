"""Is the training step still right? Each pass's step against the plain one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from megacompile.errors import VerificationError
from megacompile.measure.instruments.base import StepRun
from megacompile.plan import Effect
from megacompile.report import StepError
from megacompile.training import Origin, Training

if TYPE_CHECKING:
    from megacompile.measure.training.comparison import Trace


class StepVerification:
    """Compares the step after a pass with the plain step of the same weights and ties.

    Ties are part of the weights here: what sharing costs shows in the model's outputs, which
    the other verification holds against the original.
    """

    def __init__(self, data: Origin) -> None:
        self.data = data
        self._plain: dict[tuple[str, int, bool], Trace] = {}

    @contextmanager
    def around(self, run: StepRun) -> Iterator[None]:
        yield
        if not isinstance(run.after, Training):
            return
        start = time.perf_counter()
        run.record.training = self.check(run.after, 1, run.effect, run.dtype, run.record.pass_)
        run.record.verification_seconds += round(time.perf_counter() - start, 3)

    def check(self, form: Training, steps: int, effect: Effect, dtype: str, name: str) -> StepError:
        """Compare over so many steps, and hold to the promise.

        Raises:
            VerificationError: naming the pass and the parameter.
        """
        from megacompile.measure.training.comparison import broken_step

        found = self.measure(form, steps)
        broken = broken_step(found, effect, dtype)
        if broken is not None:
            promise = {
                Effect.EXACT: "the plain step's numbers up to float rounding",
                Effect.NUMERIC: f"rounding of {dtype}",
                Effect.LOSSY: "finite gradients",
            }[effect]
            raise VerificationError(
                what=f"'{name}' broke its promise about the training step",
                expected=promise,
                got=broken,
                remedy=f"leave '{name}' out, or choose milder options",
            )
        return found

    def measure(self, form: Training, steps: int) -> StepError:
        """Compare over so many steps with the plain step, which is traced once for a model."""
        from megacompile.measure.training.comparison import check_finite, compare_traces
        from megacompile.measure.training.tracing import trace_form
        from megacompile.models.torchmodules import fingerprint
        from megacompile.training import Recipe

        choice = form.recipe.distribute
        dropout = choice is None or choice.processes == 1
        key = (fingerprint(form.module), steps, dropout)
        if key not in self._plain:
            self._plain.clear()  # a model's gradients are as large as the model
            plain = form.with_recipe(Recipe(ties=form.recipe.ties))
            self._plain[key] = trace_form(plain, steps, self.data, dropout=dropout)
            check_finite(self._plain[key])
        return compare_traces(self._plain[key], trace_form(form, steps, self.data))
