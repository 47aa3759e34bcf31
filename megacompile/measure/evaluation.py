"""The user's metric on any callable model."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from megacompile.engines import CompiledModel
from megacompile.errors import DataError, ModelError
from megacompile.measure.statistics import metric_from
from megacompile.spec import Evaluation
from megacompile.system import hooks


def evaluate(source: Evaluation, base: Path, run: CompiledModel) -> dict[str, dict[str, Any]]:
    """Call the user's `evaluate(run)`; metrics with sample counts and sampling errors.

    Raises:
        DataError: the hook raises, or returns something else than finite numbers by name.
    """
    label = f"data.evaluation '{source.python}'"
    hook = hooks.load(source.python, base)
    try:
        found = hooks.call(label, hook, run, leaf=DataError)
    except ModelError as error:  # it calls `run` with something that the model doesn't take
        raise DataError(**{**error.fields(), "where": error.where or label}) from error
    if not isinstance(found, dict) or not found:
        raise DataError(
            what=f"{label} returns no metrics",
            where="data.evaluation",
            expected="{name: number or scores per sample}",
            got="an empty dict" if found == {} else type(found).__name__,
        )
    unknown = sorted(set(source.lower_is_better) - set(map(str, found)))
    if unknown:
        raise DataError(
            what=f"lower_is_better names '{unknown[0]}', which {label} doesn't return",
            where="data.evaluation.lower_is_better",
            expected=", ".join(map(str, found)),
        )
    metrics: dict[str, dict[str, Any]] = {}
    for name, value in found.items():
        higher = str(name) not in source.lower_is_better
        estimate = metric_from(value, run.samples_seen or None, higher, name=str(name))
        metrics[str(name)] = asdict(estimate)
    return metrics
