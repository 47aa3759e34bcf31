"""Say in terms of the spec and the user's code why torch.export can't capture a model."""

from __future__ import annotations

import re

from megacompile.errors import ModelError
from megacompile.models import Signature
from megacompile_passes.messages import first_line, user_frame
from megacompile_passes.programs.trace_inputs import symbol_of

BRANCH = re.compile(r"data-dependent (expression|branching)", re.IGNORECASE)
CONSTRAINT = re.compile(r"^\s+- (.*)$", re.MULTILINE)
VIOLATED = re.compile(r"Constraints violated \(([^)]*)\)")


def explained(failures: list[Exception], signature: Signature) -> ModelError:
    """The error to raise for what torch.export raised, tried in several ways."""
    where = next((frame for f in failures if (frame := user_frame(f))), None)
    first = failures[0]
    if any(BRANCH.search(str(f)) for f in failures):
        return ModelError(
            what="the model branches on a tensor's value, or needs it as a number",
            where=where,
            cause=first_line(first),
            expected="the same operators whatever the values are",
            remedy="use torch.where, or torch.cond for a branch that costs much",
        )
    for failure in failures:
        if "Constraints violated" in str(failure):
            return _narrowed(str(failure), where, signature)
    return ModelError(
        what="torch.export can't capture the model",
        where=where,
        cause=first_line(first),
        remedy="see torch.export's documentation of what it captures; or use `script`",
    )


def _narrowed(text: str, where: str | None, signature: Signature) -> ModelError:
    named = VIOLATED.search(text)
    symbols = [one.strip() for one in named[1].split(",")] if named else []
    dims = {name: dim for name, dim in signature.dims.items() if symbol_of(name) in symbols}
    return ModelError(
        what="the model doesn't take every size of dim " + " and ".join(f"'{d}'" for d in dims),
        where=where,
        expected=", ".join(f"{d.min} <= {name} <= {d.max}" for name, d in dims.items()),
        got="; ".join(CONSTRAINT.findall(text)[:3]),
        remedy="write the model without that size (x.shape[i] as it is, -1 in a reshape), or "
        "narrow the dim in the spec",
    )
