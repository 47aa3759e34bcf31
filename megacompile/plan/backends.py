"""What a backend is: it lowers a form to an engine, files on disk and a runner."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from megacompile.errors import BackendError
from megacompile.models import Feeds, Signature
from megacompile.plan.passes import Fact, Traits
from megacompile.system import local_archs, missing, no_gpu_reason


@dataclass(frozen=True)
class Machine:
    """The resolved target: where the engine will run and with how many threads.

    `isa` names instruction sets of a CPU, `arch` compute capabilities of NVIDIA GPUs (sm_89).
    """

    device: str
    threads: int
    isa: tuple[str, ...]
    arch: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Machine:
        """What `dataclasses.asdict` gave, after a journey as JSON."""
        return cls(**{**data, "isa": tuple(data["isa"]), "arch": tuple(data.get("arch", ()))})

    def absent(self) -> str | None:
        """Why engines for this target can't run on this machine; None if they can."""
        if self.device != "cuda" or set(self.arch) & set(local_archs()):
            return None
        if not local_archs():
            return no_gpu_reason()
        return f"this machine's GPU is {', '.join(local_archs())}, not {' or '.join(self.arch)}"


@dataclass(frozen=True)
class Availability:
    """Whether a backend can be used here; if not, the reason and the fix."""

    reason: str | None = None
    remedy: str | None = None

    @property
    def yes(self) -> bool:
        """Whether it can."""
        return self.reason is None


@dataclass
class Lowered:
    """What a backend says about the engine it wrote.

    `precision` is the effective one, pinned. `needs_isa` names instruction sets without which
    this engine would not run, or would compute something else.
    """

    precision: str
    needs_isa: tuple[str, ...] = ()
    notes: list[str] = field(default_factory=list)
    emulated: bool = False
    """The machine computes this precision by converting to a wider one."""


@dataclass(frozen=True)
class Refusal:
    """One operator that a backend's own parser does not take; `module` is where in the model it
    came from, if that is known."""

    operator: str
    node: str
    module: str | None
    reason: str
    remedy: str

    @property
    def where(self) -> str:
        """The node and its module in words."""
        path = f" of module '{self.module}'" if self.module else ""
        return f"node '{self.node}' ({self.operator}){path}"


Say = Callable[[str], None]


def silent(message: str) -> None:
    """Progress that nobody watches."""


class Runner(ABC):
    """A loaded engine: output leaves by name for input leaves by name."""

    @abstractmethod
    def run(self, feeds: Feeds) -> Feeds:
        """One call, with inputs and outputs converted."""

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        """A call with inputs already in place, for timing: inputs are converted once, outputs
        stay in the engine's own type, as in anyone's serving loop."""
        return lambda: self.run(feeds)

    def close(self) -> None:  # noqa: B027 - most engines have nothing to give back
        """Give back threads and memory."""


class Backend(BaseModel, ABC):
    """Base of all backends: a frozen object whose fields are its options in the spec."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    accepts: ClassVar[tuple[str, ...]]
    """Names of the forms it can lower."""
    libraries: ClassVar[tuple[str, ...]]
    """Distributions whose versions change the engine; they are part of the cache key."""

    def traits(self) -> Traits:
        """What the backend wants of the passes before it."""
        return Traits(backend=self.name)

    @abstractmethod
    def availability(self, target: Machine) -> Availability:
        """Whether an engine for this target can be built here."""

    def refusal(self, facts: frozenset[Fact], target: Machine) -> tuple[str, str] | None:
        """Why a model with these facts can't be lowered for this target, and what to write
        instead; None if it can."""
        return None

    @abstractmethod
    def compile(
        self,
        model: Any,
        target: Machine,
        facts: frozenset[Fact],
        out: Path,
        progress: Say = silent,
    ) -> Lowered:
        """Write the engine's files into the empty folder `out`.

        Raises:
            BackendError: the compiler refuses the model; the operator is named.
        """

    def check_operators(self, model: Any) -> list[Refusal] | None:
        """Everything in a model that the backend's parser does not take; None if it has none
        that can be asked."""
        return None

    def stale(self, out: Path, target: Machine) -> str | None:
        """Why an engine that was built elsewhere must be built again for this machine, or None."""
        return None

    def rebuild(self, out: Path, target: Machine, signature: Signature, progress: Say) -> None:
        """Build the engine in `out` again for this machine, from the model stored beside it.

        Raises:
            BackendError: this backend stores none, or the compiler refuses it here.
        """
        raise BackendError(
            what=f"'{self.name}' can't build an engine again",
            remedy="run `megacompile build` on this machine",
        )

    @abstractmethod
    def load(self, out: Path, target: Machine, signature: Signature) -> Runner:
        """Load the engine in `out`, ready to run."""


def precision_of(facts: frozenset[Fact]) -> str:
    """The name of the arithmetic a model with these facts asks for."""
    if Fact.QUANTIZED in facts:
        return "int8"
    if Fact.BFLOAT16 in facts:
        return "bfloat16"
    return "float16" if Fact.FLOAT16 in facts else "float32"


def available_with(*libraries: str, extra: str, instead: str) -> Availability:
    """Available if all distributions are installed; else what is missing and how to install."""
    absent = missing(libraries)
    if not absent:
        return Availability()
    return Availability(
        reason=f"the package '{absent[0]}' is not installed",
        remedy=f"pip install 'megacompile[{extra}]', or use {instead}",
    )
