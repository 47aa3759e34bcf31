"""What a pass class declares: its forms, read off `run`, and whether all of it is there."""

from __future__ import annotations

import typing
from typing import Any

from megacompile.errors import PassError
from megacompile.models import Eager, Exported, Form, Onnx, Scripted
from megacompile.plan.passes import Pass
from megacompile.training import Training

FORMS: dict[str, type[Form]] = {
    form.name: form for form in (Eager, Exported, Scripted, Onnx, Training)
}


def consumes(pass_class: type[Pass[Any, Any]]) -> str:
    """The form's name that `run` takes, read off its annotation."""
    return _form_of(pass_class, "model")


def produces(pass_class: type[Pass[Any, Any]]) -> str:
    """The form's name that `run` returns, read off its annotation."""
    return _form_of(pass_class, "return")


def _form_of(pass_class: type[Pass[Any, Any]], which: str) -> str:
    hints = typing.get_type_hints(pass_class.run)
    hint = hints.get(which)
    if which == "return":
        arguments = typing.get_args(hint)
        hint = arguments[0] if arguments else None
    for form in FORMS.values():
        if hint is form:
            return form.name
    verb = "takes" if which == "model" else "returns"
    raise PassError(
        what=f"run of pass '{pass_class.__name__}' does not say which form it {verb}",
        where=f"{pass_class.__module__}.{pass_class.__qualname__}.run",
        expected="run(self, model: F, ctx: PassContext) -> Result[G], F and G one of "
        + ", ".join(FORMS),
        got=str(hint),
        audience="pass author",
    )


def check_class(pass_class: Any, where: str) -> type[Pass[Any, Any]]:
    """A pass class that declares all it must.

    Raises:
        PassError: no Pass, abstract, or a declaration is missing.
    """
    if not (isinstance(pass_class, type) and issubclass(pass_class, Pass)):
        raise PassError(
            what="not a pass",
            where=where,
            expected="a subclass of megacompile.Pass",
            got=repr(pass_class),
            audience="pass author",
        )
    needed = ("name", "effect", "requires", "provides", "invalidates")
    missing = [n for n in needed if not hasattr(pass_class, n)]
    abstract = sorted(getattr(pass_class, "__abstractmethods__", ()))
    lacking = [*(f"{n}: ClassVar" for n in missing), *(f"method {n}" for n in abstract)]
    if lacking:
        raise PassError(
            what=f"pass '{pass_class.__name__}' is incomplete",
            where=where,
            expected=", ".join(lacking),
            got="not defined",
            audience="pass author",
        )
    consumes(pass_class)
    produces(pass_class)
    return pass_class
