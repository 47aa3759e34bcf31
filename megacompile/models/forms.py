"""What a model currently is: a module, an exported program, a TorchScript or ONNX file.

The fifth form, a module to be trained, is `training.form.Training`.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from megacompile.errors import ModelError
from megacompile.models.signature import Binding, Signature
from megacompile.models.tensors import Feeds, to_numpy, to_torch

if TYPE_CHECKING:
    import torch

    from megacompile.models import onnxfile


class Form(ABC):
    """A model in one of its states; `run` works the same for all of them."""

    name: ClassVar[str]
    signature: Signature

    @abstractmethod
    def run(self, feeds: Feeds) -> Feeds:
        """Output leaves by name for input leaves by name; nothing of the model changes."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the model into an empty folder."""

    @classmethod
    @abstractmethod
    def load(cls, folder: Path, signature: Signature) -> Form:
        """Read what `save` wrote."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of weights by unique storage (for a file: of the file and its data)."""

    @abstractmethod
    def parameters(self) -> int:
        """Number of weight elements, each storage counted once."""


class TorchForm(Form):
    """A form whose weights are torch tensors."""

    @abstractmethod
    def tensors(self) -> list[torch.Tensor]:
        """All weights; tied ones may come several times."""

    def size_bytes(self) -> int:
        from megacompile.models.torchmodules import unique_storages

        return sum(size for _, size in unique_storages(self.tensors()).values())

    def parameters(self) -> int:
        from megacompile.models.torchmodules import unique_storages

        return sum(elements for elements, _ in unique_storages(self.tensors()).values())


class Eager(TorchForm):
    """A torch.nn.Module in evaluation mode with how its forward is called."""

    name = "Eager"

    def __init__(self, module: torch.nn.Module, signature: Signature, binding: Binding) -> None:
        self.module, self.signature, self.binding = module, signature, binding

    def call(self, feeds: Feeds) -> Any:
        """The output in its original structure, as torch tensors, without gradients."""
        import torch

        arguments = self.signature.arguments(lambda name: to_torch(feeds[name]))
        args, kwargs = self.binding.split(arguments)
        with torch.no_grad():
            return self.module(*args, **kwargs)

    def run(self, feeds: Feeds) -> Feeds:
        from megacompile.models.torchmodules import output_leaves

        return {n: to_numpy(t) for n, t in output_leaves(self.call(feeds), self.signature).items()}

    def flat(self) -> torch.nn.Module:
        """The module with leaves in, leaves out: what every conversion starts from."""
        from megacompile.models.torchmodules import Flat

        return Flat(self.module, self.signature, self.binding)

    def with_module(self, module: torch.nn.Module) -> Eager:
        """Another module that is called the same way."""
        return Eager(module, self.signature, self.binding)

    def copy(self) -> Eager:
        """A copy that a pass may change: weights, ties, flags and hooks as in the original."""
        from megacompile.models.torchmodules import copy_module

        return self.with_module(copy_module(self.module))

    def save(self, folder: Path) -> None:
        import torch

        # The cache's own files, read back only by the process family that wrote them; a bundle
        # never holds an Eager form, so no pickle leaves this machine.
        torch.save((self.module, self.binding), folder / "module.pickle")

    @classmethod
    def load(cls, folder: Path, signature: Signature) -> Eager:
        import torch

        module, binding = torch.load(folder / "module.pickle", weights_only=False)
        return cls(module, signature, binding)

    def tensors(self) -> list[torch.Tensor]:
        return [*self.module.parameters(), *self.module.buffers()]


class Exported(TorchForm):
    """A torch.export program: leaves in, leaves out."""

    name = "Exported"

    def __init__(self, program: torch.export.ExportedProgram, signature: Signature) -> None:
        self.program, self.signature = program, signature
        self._module: Any = None

    def run(self, feeds: Feeds) -> Feeds:
        import torch

        if self._module is None:
            self._module = self.program.module()
        with torch.no_grad():
            leaves = self._module(*[to_torch(feeds[name]) for name in self.signature.tensors])
        return dict(zip(self.signature.outputs, map(to_numpy, leaves), strict=True))

    def save(self, folder: Path) -> None:
        import torch

        torch.export.save(self.program, folder / "model.pt2")

    @classmethod
    def load(cls, folder: Path, signature: Signature) -> Exported:
        import torch

        path = folder / "model.pt2"
        with quiet():
            try:
                program = torch.export.load(path)
            except Exception:  # noqa: BLE001 - an operator of torchao's is not known yet
                register_quantized_operators()  # takes long to import: only when it is needed
                program = torch.export.load(path)
        return cls(program, signature)

    def tensors(self) -> list[torch.Tensor]:
        import torch

        values = [*self.program.state_dict.values(), *self.program.constants.values()]
        return [v for v in values if isinstance(v, torch.Tensor)]


class Scripted(TorchForm):
    """A TorchScript module: leaves in, leaves out."""

    name = "Scripted"

    def __init__(self, module: torch.jit.ScriptModule, signature: Signature) -> None:
        self.module, self.signature = module, signature

    def run(self, feeds: Feeds) -> Feeds:
        import torch

        with torch.no_grad():
            leaves = self.leaves(*[to_torch(feeds[name]) for name in self.signature.tensors])
        return dict(zip(self.signature.outputs, map(to_numpy, leaves), strict=True))

    def leaves(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Output leaves in order, also of a user's own TorchScript that nests its outputs."""
        from megacompile.models.torchmodules import output_leaves

        value = self.module(*tensors)
        if isinstance(value, tuple) and len(value) == len(self.signature.outputs):
            return value
        return tuple(output_leaves(value, self.signature).values())

    def save(self, folder: Path) -> None:
        self.module.save(str(folder / "model.pt"))

    @classmethod
    def load(cls, folder: Path, signature: Signature) -> Scripted:
        import torch

        return cls(torch.jit.load(str(folder / "model.pt"), map_location="cpu"), signature)

    def tensors(self) -> list[torch.Tensor]:
        from megacompile.models.torchmodules import script_constants

        return [*self.module.state_dict().values(), *script_constants(self.module)]


class Onnx(Form):
    """An ONNX file by path; large tensors lie in an external data file beside it."""

    name = "Onnx"

    def __init__(self, path: Path, signature: Signature) -> None:
        self.path, self.signature = path, signature
        self._session: onnxfile.Session | None = None

    def run(self, feeds: Feeds) -> Feeds:
        from megacompile.models import onnxfile

        if self._session is None:
            self._session = onnxfile.open_session(self.path)
        return self._session.run(feeds, self.signature.outputs)

    def save(self, folder: Path) -> None:
        from megacompile.models import onnxfile

        onnxfile.copy_model(self.path, folder / "model.onnx")

    @classmethod
    def load(cls, folder: Path, signature: Signature) -> Onnx:
        path = folder / "model.onnx"
        if not path.exists():
            raise ModelError(what="no model.onnx in the stored form", where=str(folder))
        return cls(path, signature)

    def size_bytes(self) -> int:
        from megacompile.models import onnxfile

        return onnxfile.size_bytes(self.path)

    def parameters(self) -> int:
        from megacompile.models import onnxfile

        return onnxfile.count_parameters(self.path)


def register_quantized_operators() -> None:
    """A program quantized by PT2E names operators that torchao registers when imported."""
    with contextlib.suppress(ImportError), quiet():
        import torchao.quantization.pt2e  # noqa: F401


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep libraries' notices (torchao's missing .so files, export's hints) from the user."""
    import logging
    import warnings

    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)
