"""The spec: what a user writes, as pydantic models, with the line of every problem."""

from megacompile.spec.deploy import Port, Triton, Versions
from megacompile.spec.load import Loaded, load_spec, load_spec_data, translate
from megacompile.spec.models import (
    DIM_NAME,
    AnyInput,
    Benchmark,
    Budget,
    ConstantInput,
    DictInput,
    Dim,
    DType,
    Evaluation,
    Item,
    Spec,
    TensorInput,
    TupleInput,
    batch_of,
    leaves,
)
from megacompile.spec.positions import KeyPath, parse_document
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
