"""ONNX files: weights beside the graph, subgraphs included, nothing appended, nothing doubled."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from megacompile.errors import ModelError
from megacompile.models.tensors import Array, Feeds

# Tensors of at least this many bytes go to the data file. Small ones stay in the graph, where
# shape inference and constant folding need them.
EXTERNAL_BYTES = 1024
DATA_SUFFIX = ".data"
CUDA_PROVIDER = "CUDAExecutionProvider"
# From operator set 21 on, ONNX Runtime's step to unsigned activations leaves the dtype that a
# QuantizeLinear names, and the graph is refused with these words: it is then opened without.
CONTRADICTION, TO_UNSIGNED = "does not match y_zero_point type", "QDQS8ToU8Transformer"
# A protobuf message ends at 2 GiB; onnxsim and NNCF pass whole models as one message.
MESSAGE_LIMIT = 2**31 - 1

FLOATS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.DOUBLE,
}
QUANTIZED = {
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.INT4,
    onnx.TensorProto.UINT4,
}


def read(path: Path, weights: bool = True) -> onnx.ModelProto:
    """Load a model; `weights=False` leaves external data on disk.

    Raises:
        ModelError: no ONNX model, or its data file is missing.
    """
    try:
        return onnx.load(str(path), load_external_data=weights)
    except FileNotFoundError as error:
        raise ModelError(
            what="a file of the ONNX model is missing",
            where=str(path),
            cause=str(error),
            remedy="keep the .onnx and its data file together",
        ) from error
    except Exception as error:
        raise ModelError(
            what="not readable as an ONNX model",
            where=str(path),
            cause=f"{type(error).__name__}: {error}",
        ) from error


def write(model: onnx.ModelProto, path: Path) -> None:
    """Write a model with its large tensors in one new data file beside it."""
    data = path.with_name(path.name + DATA_SUFFIX)
    # onnx appends to a data file that exists (onnx/onnx#6655).
    data.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save_model(
        model,
        str(path),
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location=data.name,
        size_threshold=EXTERNAL_BYTES,
    )


def copy_model(source: Path, target: Path) -> None:
    """Copy a model with its data files; the copy's data file gets the copy's name."""
    names = data_files(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    if not names:
        shutil.copyfile(source, target)
        return
    wanted = target.name + DATA_SUFFIX
    model = read(source, weights=False)
    if len(names) > 1:
        write(read(source), target)
        return
    for tensor in all_tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = wanted
    # No hard link: onnx refuses data files that have several names, as a possible attack.
    shutil.copyfile(source.parent / names[0], target.with_name(wanted))
    target.write_bytes(model.SerializeToString())


def data_files(path: Path) -> list[str]:
    """Names of the external data files a model refers to."""
    tensors = all_tensors(read(path, weights=False))
    entries = (entry for tensor in tensors for entry in tensor.external_data)
    return sorted({entry.value for entry in entries if entry.key == "location"})


def size_bytes(path: Path) -> int:
    """Bytes of the file and of its data files."""
    return path.stat().st_size + sum((path.parent / n).stat().st_size for n in data_files(path))


def fingerprint(path: Path) -> str:
    """A hash of the file and of its data files."""
    digest = hashlib.blake2b(digest_size=20)
    for file in [path, *(path.parent / name for name in data_files(path))]:
        with open(file, "rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def all_graphs(model: onnx.ModelProto) -> Iterator[Any]:
    """The main graph, the bodies of If, Loop and Scan at any depth, and local functions."""
    waiting: list[Any] = [model.graph, *model.functions]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.type == onnx.AttributeProto.GRAPH:
                    waiting.append(attribute.g)
                elif attribute.type == onnx.AttributeProto.GRAPHS:
                    waiting.extend(attribute.graphs)


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of all graphs."""
    for graph in all_graphs(model):
        yield from graph.node


def all_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Initializers and the values of Constant nodes, of all graphs."""
    for graph in all_graphs(model):
        yield from getattr(graph, "initializer", ())
        for node in graph.node:
            if node.op_type == "Constant":
                yield from (a.t for a in node.attribute if a.name == "value")


def weights(model: onnx.ModelProto) -> dict[str, onnx.TensorProto]:
    """Weight tensors by name: float or quantized, of all graphs, Constant nodes included.

    Scales and zero points of quantization are no weights.
    """
    bookkeeping = {
        name for node in all_nodes(model) if "Linear" in node.op_type for name in node.input[1:]
    }
    # Integer operators and looked-up rows get scales through Mul: their names tell.
    for tensor in all_tensors(model):
        base = tensor.name.removesuffix("_quantized")
        if base != tensor.name:
            bookkeeping |= {f"{base}_scale", f"{base}_zero_point"}
    found: dict[str, onnx.TensorProto] = {}
    for number, graph in enumerate(all_graphs(model)):
        for tensor in getattr(graph, "initializer", ()):
            if tensor.data_type in FLOATS | QUANTIZED and tensor.name not in bookkeeping:
                found[tensor.name if number == 0 else f"{number}/{tensor.name}"] = tensor
        for node in graph.node:
            if node.op_type != "Constant" or not node.output or node.output[0] in bookkeeping:
                continue
            for attribute in node.attribute:
                if attribute.name == "value" and attribute.t.data_type in FLOATS | QUANTIZED:
                    found[f"{number}/{node.output[0]}"] = attribute.t
    return found


def count_parameters(path: Path) -> int:
    """Elements of all weights; a tensor that several nodes use counts once."""
    model = read(path, weights=False)
    return sum(int(np.prod(t.dims)) if t.dims else 1 for t in weights(model).values())


def opset(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operator set that a model asks for."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)


def uses_dtype(path: Path, dtype: int) -> bool:
    """Whether any weight has this element type of `onnx.TensorProto`."""
    return any(t.data_type == dtype for t in weights(read(path, weights=False)).values())


@dataclass
class Session:
    """An ONNX Runtime session that ignores inputs the graph doesn't have."""

    session: Any
    names: frozenset[str]

    def run(self, feeds: Feeds, outputs: Sequence[str]) -> Feeds:
        """The named outputs, or all of them if none is named."""
        known = {name: array for name, array in feeds.items() if name in self.names}
        available = [o.name for o in self.session.get_outputs()]
        wanted = list(outputs) or available
        values: list[Array] = self.session.run(wanted, known)
        return dict(zip(wanted, values, strict=True))


def open_session(
    path: Path, threads: int | None = None, optimization: str = "all", device: str = "cpu"
) -> Any:
    """Open a model for execution: on this CPU by ONNX Runtime, or, for bfloat16, OpenVINO; on
    device cuda by ONNX Runtime's CUDA provider.

    Raises:
        ModelError: the runtime refuses the model; its message names the node.
    """
    if device == "cpu" and uses_dtype(path, onnx.TensorProto.BFLOAT16):
        # ONNX Runtime's CPU provider has no bfloat16 kernels (microsoft/onnxruntime#28768).
        from megacompile.models.openvinofile import open_openvino

        return open_openvino(path, threads)
    session = _start(path, _session_options(threads, optimization), device)
    # An initializer that is an input too has a default, which callers may override.
    inputs = [*session.get_inputs(), *session.get_overridable_initializers()]
    return Session(session, frozenset(i.name for i in inputs))


def _session_options(threads: int | None, optimization: str) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = threads or 0
    options.inter_op_num_threads = 1
    # A thread that spins while it waits takes a core from whatever is measured next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    level = ort.GraphOptimizationLevel
    options.graph_optimization_level = {
        "all": level.ORT_ENABLE_ALL,
        "extended": level.ORT_ENABLE_EXTENDED,
        "basic": level.ORT_ENABLE_BASIC,
        "none": level.ORT_DISABLE_ALL,
    }[optimization]
    return options


def _start(path: Path, options: Any, device: str) -> Any:
    import onnxruntime as ort

    providers = ["CPUExecutionProvider"]
    if device == "cuda":
        providers.insert(0, CUDA_PROVIDER)
    try:
        try:
            session = ort.InferenceSession(str(path), options, providers=providers)
        except ort.capi.onnxruntime_pybind11_state.Fail as error:
            if CONTRADICTION not in str(error):
                raise
            session = ort.InferenceSession(
                str(path), options, providers=providers, disabled_optimizers=[TO_UNSIGNED]
            )
    except Exception as error:
        raise ModelError(
            what="ONNX Runtime refuses the model",
            where=str(path),
            cause=str(error).splitlines()[0] if str(error) else repr(error),
        ) from error
    # ONNX Runtime falls back to the CPU with a line in its log when CUDA can't be started.
    if session.get_providers()[0] != providers[0]:
        raise ModelError(
            what=f"ONNX Runtime can't start {providers[0]}",
            where=str(path),
            got=", ".join(session.get_providers()),
            remedy="check the CUDA and cuDNN versions that onnxruntime-gpu asks for",
        )
    return session
