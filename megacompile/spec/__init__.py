"""The spec: what a user writes, as pydantic models, with the line of every problem."""

from megacompile.spec.deploy import Port, Triton, Versions
from megacompile.spec.inputs import (
    DIM_NAME,
    AnyInput,
    ConstantInput,
    DictInput,
    Dim,
    DType,
    TensorInput,
    TupleInput,
    batch_of,
    leaves,
)
from megacompile.spec.load import Loaded, load_spec, load_spec_data
from megacompile.spec.models import Benchmark, Budget, Evaluation, Item, Spec
from megacompile.spec.positions import KeyPath, parse_document
from megacompile.spec.problems import translate
from megacompile.spec.training import AdamW, Optimizer, Train

__all__ = [
    "DIM_NAME",
    "AdamW",
    "AnyInput",
    "Benchmark",
    "Budget",
    "ConstantInput",
    "DType",
    "DictInput",
    "Dim",
    "Evaluation",
    "Item",
    "KeyPath",
    "Loaded",
    "Optimizer",
    "Port",
    "Spec",
    "TensorInput",
    "Train",
    "Triton",
    "TupleInput",
    "Versions",
    "batch_of",
    "leaves",
    "load_spec",
    "load_spec_data",
    "parse_document",
    "translate",
]
