"""Every error a user can meet: one base, few leaves.

An error says where, what was expected, what was found, why, and what to do.
`audience` names who must act: the user (spec, model, data), the author of a
pass, or us.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

Audience = Literal["user", "pass author", "megacompile"]


@dataclass
class MegacompileError(Exception):
    """Base of all errors that are shown without a traceback."""

    what: str
    where: str | None = None
    expected: str | None = None
    got: str | None = None
    cause: str | None = None
    remedy: str | None = None
    audience: Audience = "user"

    exit_code: ClassVar[int] = 2

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        lines = [head]
        for label, text in (
            ("expected", self.expected),
            ("got", self.got),
            ("cause", self.cause),
            ("to do", self.remedy),
        ):
            if text:
                lines.append(f"  {label}: {text}")
        if self.audience != "user":
            lines.append(f"  for: the {self.audience}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """The error as plain data, to travel from a worker process to its parent."""
        return {"type": type(self).__name__, **self.fields()}

    def fields(self) -> dict[str, Any]:
        """The arguments that make an equal error, of this leaf or another."""
        return {
            "what": self.what,
            "where": self.where,
            "expected": self.expected,
            "got": self.got,
            "cause": self.cause,
            "remedy": self.remedy,
            "audience": self.audience,
        }


class SpecError(MegacompileError):
    """The spec file says something that can't be meant."""


class PlanError(MegacompileError):
    """No order of conversions makes the steps of a candidate fit together."""


class ModelError(MegacompileError):
    """The model can't be loaded, called, or compared with itself."""


class DataError(MegacompileError):
    """Calibration or evaluation data that can't be used."""


class PassError(MegacompileError):
    """A pass refused its input, failed, or had no effect."""

    exit_code = 4


class BackendError(MegacompileError):
    """A backend could not lower or load a model."""

    exit_code = 4


class VerificationError(MegacompileError):
    """A step's answers differ from the original's by more than it promised."""

    exit_code = 4


class WorkerError(MegacompileError):
    """A process of ours ended without an answer (crash, killed, out of memory)."""

    exit_code = 4


class BundleError(MegacompileError):
    """A bundle that is damaged, incomplete, or made for other hardware."""


class BudgetError(MegacompileError):
    """Something was built, but nothing is inside the budget."""

    exit_code = 3


@dataclass
class Problems(MegacompileError):
    """Several errors that were found together and are reported together."""

    problems: Sequence[MegacompileError] = field(default_factory=tuple)

    @classmethod
    def of(cls, problems: Sequence[MegacompileError]) -> Problems:
        """All of them as one."""
        return cls(what=f"{len(problems)} problems", problems=tuple(problems))

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


LEAVES: dict[str, type[MegacompileError]] = {
    leaf.__name__: leaf
    for leaf in (
        MegacompileError,
        SpecError,
        PlanError,
        ModelError,
        DataError,
        PassError,
        BackendError,
        VerificationError,
        WorkerError,
        BundleError,
        BudgetError,
    )
}


def from_dict(data: dict[str, Any]) -> MegacompileError:
    """The error that `to_dict` wrote, with its type."""
    fields = dict(data)
    return LEAVES[fields.pop("type")](**fields)


def raise_all(problems: Sequence[MegacompileError]) -> None:
    """Raise nothing for no problem, the problem itself for one, `Problems` for more."""
    if len(problems) == 1:
        raise problems[0]
    if problems:
        raise Problems.of(problems)


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A remedy that names the nearest known words, or all of them when none is near."""
    words = sorted(set(known))
    near = difflib.get_close_matches(word, words, n=3, cutoff=0.6)
    if near:
        return "did you mean " + " or ".join(f"'{name}'" for name in near) + "?"
    if words and len(words) <= 40:
        return "known: " + ", ".join(words)
    return None
