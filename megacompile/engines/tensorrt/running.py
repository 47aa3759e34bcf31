"""TensorRT engines on this machine's GPU: by TensorRT's runtime, or by ONNX Runtime's provider."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from megacompile.engines.tensorrt import flavours
from megacompile.engines.tensorrt.parsing import Log, clean
from megacompile.engines.torchrunner import waited
from megacompile.errors import BackendError
from megacompile.models import Feeds, Signature, to_numpy, to_torch
from megacompile.plan import Runner
from megacompile.system import local_archs

if TYPE_CHECKING:
    import torch

PROVIDER_NAME = "NvTensorRTRTXExecutionProvider"
# TensorRT's dtypes as torch calls them.
DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "INT8": "int8",
    "UINT8": "uint8",
    "BOOL": "bool",
}


def refused(folder: Path, record: Mapping[str, Any]) -> str | None:
    """Why TensorRT would not load the stored engine on this machine; None if it would."""
    arch = _built_for_here(folder)
    api = flavours.load(record["flavour"])
    runtime = api.Runtime(Log(api).logger)
    if arch is None or not hasattr(runtime, "get_engine_validity"):
        return None
    validity, reasons = runtime.get_engine_validity((folder / f"{arch}.engine").read_bytes())
    if validity == api.EngineValidity.VALID:
        return None
    return f"TensorRT calls the engine {validity.name.lower()} on this GPU ({reasons})"


def open_engine(
    folder: Path, record: Mapping[str, Any], signature: Signature, cuda_graph: bool
) -> Runner:
    """Load the engine for this machine's GPU.

    Raises:
        BackendError: there is none for it, or TensorRT refuses it (other version, other GPU).
    """
    arch = _built_for_here(folder)
    if arch is None:
        raise BackendError(
            what="there is no engine for this machine's GPU",
            where=str(folder),
            expected=" or ".join(record["archs"]),
            got=", ".join(local_archs()),
            remedy="`megacompile finish BUNDLE` builds it from the stored ONNX",
        )
    api = flavours.load(record["flavour"])
    log = Log(api)
    stored = (folder / f"{arch}.engine").read_bytes()
    engine = api.Runtime(log.logger).deserialize_cuda_engine(stored)
    if engine is None:
        raise BackendError(
            what=f"the engine for {arch} can't be loaded",
            where=str(folder),
            expected=record["version"],
            got=f"{record['flavour']} {api.__version__}",
            cause=clean(log.lines[-1]) if log.lines else None,
            remedy="`megacompile finish BUNDLE` builds it again from the stored ONNX",
        )
    fixed = all(dim.fixed for dim in signature.dims.values())
    return _EngineRunner(api, engine, log, signature, graph=cuda_graph and fixed)


def _built_for_here(folder: Path) -> str | None:
    """The architecture of this machine that there is an engine for."""
    return next((a for a in local_archs() if (folder / f"{a}.engine").is_file()), None)


class _EngineRunner(Runner):
    """An engine with one execution context; inputs and outputs are torch tensors on the GPU."""

    def __init__(self, api: Any, engine: Any, log: Log, signature: Signature, graph: bool) -> None:
        self.api, self.engine, self.log, self.signature = api, engine, log, signature
        self.context: Any = engine.create_execution_context()
        if self.context is None:
            raise BackendError(
                what="the engine has no room on the GPU",
                cause=clean(log.lines[-1]) if log.lines else None,
                remedy="free GPU memory, or set workspace_mb",
            )
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        inputs = api.TensorIOMode.INPUT
        self.inputs = [name for name in names if engine.get_tensor_mode(name) == inputs]
        self.graph = graph

    def run(self, feeds: Feeds) -> Feeds:
        outputs = self._bind(self._on_gpu(feeds))()
        return {name: to_numpy(outputs[name]) for name in self.signature.outputs}

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        call = self._bind(self._on_gpu(feeds))
        return waited(self._recorded(call) if self.graph else call)

    def close(self) -> None:
        self.context = None
        self.engine = None

    def _on_gpu(self, feeds: Feeds) -> dict[str, torch.Tensor]:
        return {
            name: to_torch(feeds[name]).to("cuda", self._dtype(name)).contiguous()
            for name in self.inputs
        }

    def _bind(self, tensors: dict[str, torch.Tensor]) -> Callable[[], dict[str, torch.Tensor]]:
        """Set shapes and addresses; the result starts the engine and gives its output tensors."""
        import torch

        context = self.context
        for name, tensor in tensors.items():
            if not context.set_input_shape(name, tuple(tensor.shape)):
                raise BackendError(
                    what=f"input '{name}' is outside the engine's profile",
                    got=str(tuple(tensor.shape)),
                    cause=clean(self.log.lines[-1]) if self.log.lines else None,
                )
            context.set_tensor_address(name, tensor.data_ptr())
        outputs: dict[str, torch.Tensor] = {}
        for name in self.signature.outputs:
            shape = tuple(context.get_tensor_shape(name))
            if -1 in shape:
                raise BackendError(
                    what=f"the size of output '{name}' depends on values",
                    remedy="use runtime: onnxruntime for this model",
                )
            outputs[name] = torch.empty(shape, dtype=self._dtype(name), device="cuda")
            context.set_tensor_address(name, outputs[name].data_ptr())

        def once() -> dict[str, torch.Tensor]:
            stream = torch.cuda.current_stream().cuda_stream
            if not context.execute_async_v3(stream):
                raise BackendError(
                    what="the engine fails",
                    cause=clean(self.log.lines[-1]) if self.log.lines else None,
                )
            assert tensors  # their memory must live as long as the call that reads it
            return outputs

        return once

    def _recorded(self, call: Callable[[], Any]) -> Callable[[], Any]:
        """The call as one CUDA graph: sizes never change, so every launch is the same."""
        import torch

        # A first run outside the graph compiles and allocates, which a recording may not.
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            call()
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            outputs = call()

        def replay() -> Any:
            graph.replay()
            return outputs

        return replay

    def _dtype(self, name: str) -> torch.dtype:
        import torch

        dtype: torch.dtype = getattr(torch, DTYPES[self.engine.get_tensor_dtype(name).name])
        return dtype


def open_provider(path: Path, signature: Signature) -> Runner:
    """The ONNX file by ONNX Runtime's TensorRT-RTX execution provider, which compiles it anew.

    Raises:
        BackendError: the plugin wheel is missing, or the provider finds no GPU.
    """
    import onnxruntime as ort

    try:
        import onnxruntime_ep_nv_tensorrt_rtx as plugin
    except ImportError as error:
        raise BackendError(
            what="ONNX Runtime's TensorRT-RTX provider is not installed",
            cause=str(error),
            remedy=flavours.RTX.install,
        ) from error
    if PROVIDER_NAME not in {device.ep_name for device in ort.get_ep_devices()}:
        try:
            ort.register_execution_provider_library(PROVIDER_NAME, plugin.get_library_path())
        except Exception as error:  # ONNX Runtime's own Fail, e.g. for an absent libcuda.so.1
            raise BackendError(
                what="ONNX Runtime's TensorRT-RTX provider can't be loaded",
                cause=str(error),
                remedy="load it on the target machine",
            ) from error
    devices = [device for device in ort.get_ep_devices() if device.ep_name == PROVIDER_NAME]
    if not devices:
        raise BackendError(
            what="ONNX Runtime's TensorRT-RTX provider finds no GPU",
            where=str(path),
            remedy="load it on the target machine",
        )
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.add_provider_for_devices(devices[:1], {})
    return _ProviderRunner(ort.InferenceSession(str(path), options), signature)


class _ProviderRunner(Runner):
    def __init__(self, session: Any, signature: Signature) -> None:
        self.session: Any = session
        self.signature = signature
        self.names = {one.name for one in session.get_inputs()}

    def run(self, feeds: Feeds) -> Feeds:
        values = self.prepare(feeds)()
        return {n: np.asarray(v) for n, v in zip(self.signature.outputs, values, strict=True)}

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        known = {name: array for name, array in feeds.items() if name in self.names}
        outputs, session = list(self.signature.outputs), self.session
        return lambda: session.run(outputs, known)

    def close(self) -> None:
        self.session = None
