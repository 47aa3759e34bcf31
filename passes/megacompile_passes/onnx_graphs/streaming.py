"""Write an ONNX model whose weights are too large for one message."""

from __future__ import annotations

import math
from pathlib import Path
from typing import BinaryIO

import onnx
from onnx import external_data_helper, helper

from megacompile.models import onnxfile

COPY_BYTES = 1 << 24
PAGED_BYTES = 1 << 20


def tensor_bytes(tensor: onnx.TensorProto) -> int:
    """Bytes of a tensor's values, wherever they are stored."""
    size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    return math.prod(tensor.dims) * size


def write_streamed(model: onnx.ModelProto, source_folder: Path, path: Path) -> None:
    """Write a model whose tensors may still lie in data files of `source_folder`.

    Values go from file to file in pieces, never through one message.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    location = path.name + onnxfile.DATA_SUFFIX
    used = False
    with open(path.with_name(location), "wb") as stream:
        for tensor in onnxfile.all_tensors(model):
            external = tensor.data_location == onnx.TensorProto.EXTERNAL
            if not external and len(tensor.raw_data) < onnxfile.EXTERNAL_BYTES:
                continue
            used = True
            # Readers map data files into memory: large tensors start at a page.
            alignment = 4096 if tensor_bytes(tensor) >= PAGED_BYTES else 64
            offset = stream.seek(-(-stream.tell() // alignment) * alignment)
            if external:
                info = external_data_helper.ExternalDataInfo(tensor)
                length = info.length or tensor_bytes(tensor)
                _copy_bytes(source_folder / info.location, info.offset or 0, length, stream)
            else:
                length = stream.write(tensor.raw_data)
            # onnx's own setter wants the values in memory; a placeholder satisfies it.
            tensor.raw_data = b""
            external_data_helper.set_external_data(tensor, location, offset, length)
            tensor.ClearField("raw_data")
    if not used:
        path.with_name(location).unlink()
    path.write_bytes(model.SerializeToString())


def _copy_bytes(source: Path, offset: int, length: int, target: BinaryIO) -> None:
    with open(source, "rb") as stream:
        stream.seek(offset)
        while length > 0:
            piece = stream.read(min(length, COPY_BYTES))
            if not piece:
                raise EOFError(f"{source} ends {length} bytes early")
            target.write(piece)
            length -= len(piece)
