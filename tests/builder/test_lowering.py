"""An engine is held to what its model computed."""

from __future__ import annotations

import pytest


def test_a_compiler_that_computes_something_else_is_named() -> None:
    from megacompile.builder.lowering import _check_lowering
    from megacompile.errors import VerificationError
    from megacompile.measure.instruments import StepRun
    from megacompile.plan.passes import Effect
    from megacompile.report.model import ErrorRecord, Step

    def error(cosine: float) -> ErrorRecord:
        return ErrorRecord(max_abs=1, relative=1, cosine_min=cosine, worst="output 'y'")

    record = Step.model_validate({"pass": "aotinductor", "form": "engine", "effect": "LOSSY"})
    step = StepRun(2, record, Effect.LOSSY, "float32")
    record.error = error(0.99)
    _check_lowering(error(0.995), step)
    record.error = error(-0.06)
    with pytest.raises(VerificationError, match="'aotinductor' computes something else"):
        _check_lowering(error(0.9999), step)
