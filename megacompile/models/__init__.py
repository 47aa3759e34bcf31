"""What a model is: its forms and their files, how it is called, and how outputs compare.

`torchmodules` and `onnxfile` load torch and onnx: they are imported by their own names.
"""

from megacompile.models import examples
from megacompile.models.comparison import Comparison, InputSet, Tolerance, compare
from megacompile.models.forms import (
    Eager,
    Exported,
    Form,
    Onnx,
    Scripted,
    TorchForm,
    quiet,
    register_quantized_operators,
)
from megacompile.models.openvinofile import open_openvino
from megacompile.models.shapes import output_shapes
from megacompile.models.signature import Binding, Signature, bind
from megacompile.models.source import base_signature, fingerprint, load_original, source_path
from megacompile.models.structure import Structure, is_tensor, put_together, rename, take_apart
from megacompile.models.tensors import (
    Array,
    Feeds,
    as_float64,
    load_arrays,
    numpy_dtype,
    save_arrays,
    to_numpy,
    to_torch,
    torch_dtype,
)

__all__ = [
    "Array",
    "Binding",
    "Comparison",
    "Eager",
    "Exported",
    "Feeds",
    "Form",
    "InputSet",
    "Onnx",
    "Scripted",
    "Signature",
    "Structure",
    "Tolerance",
    "TorchForm",
    "as_float64",
    "base_signature",
    "bind",
    "compare",
    "examples",
    "fingerprint",
    "is_tensor",
    "load_arrays",
    "load_original",
    "numpy_dtype",
    "open_openvino",
    "output_shapes",
    "put_together",
    "quiet",
    "register_quantized_operators",
    "rename",
    "save_arrays",
    "source_path",
    "take_apart",
    "to_numpy",
    "to_torch",
    "torch_dtype",
]
