"""The spec: what a user writes, as pydantic models, with the line of every problem."""

from megacompile.spec.load import Loaded, load_spec, load_spec_data
from megacompile.spec.models import (
    Benchmark,
    Budget,
    ConstantInput,
    DictInput,
    Dim,
    Evaluation,
    Item,
    ModelSource,
    Sampled,
    Spec,
    Target,
    TensorInput,
    TupleInput,
    Variant,
)
from megacompile.spec.training import SGD, Adam, AdamW, Optimizer, Train

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Benchmark",
    "Budget",
    "ConstantInput",
    "DictInput",
    "Dim",
    "Evaluation",
    "Item",
    "Loaded",
    "ModelSource",
    "Optimizer",
    "Sampled",
    "Spec",
    "Target",
    "TensorInput",
    "Train",
    "TupleInput",
    "Variant",
    "load_spec",
    "load_spec_data",
]
