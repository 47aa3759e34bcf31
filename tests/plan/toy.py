"""Plans of a toy model that is never loaded, and what is wrong with them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from megacompile.errors import MegacompileError
from megacompile.plan.backends import Machine
from megacompile.plan.planner import Plan, make_plan
from megacompile.spec import load_spec_data

MACHINE = Machine("cpu", 2, ("avx2", "avx512_vnni"))
MODELS = {"python": "m.py:f", "onnx": "m.onnx", "exported": "m.pt2", "torchscript": "m.pt"}

INT8 = {"quantize": {"method": "dynamic"}}
BF16 = {"cast": {"dtype": "bfloat16"}}
RECOVER = {"recover": {"batches": "m.py:f", "steps": 1, "distill": {}}}
TRAIN = {"loss": "m.py:f", "batches": "m.py:f", "batch_size": 2}


def plan_of(
    model: str = "python", machine: Machine = MACHINE, quantized: bool = False, **sections: Any
) -> Plan:
    """The plan of a spec with these sections."""
    data = {
        "name": "toy",
        "model": {model: MODELS[model]},
        "inputs": {"x": {"shape": [2, 3]}},
        **sections,
    }
    return make_plan(load_spec_data(data, Path()), lambda _: machine, quantized)


def steps_of(plan: Plan) -> dict[str, list[str]]:
    """Candidate -> the names of its steps."""
    return {c.name: [s.pass_.name for s in c.steps] for c in plan.candidates}


def errors_of(**sections: Any) -> str:
    """What is wrong with such a spec, as a user reads it."""
    with pytest.raises(MegacompileError) as caught:
        plan_of(**sections)
    return str(caught.value)


def assert_refused(sections: dict[str, Any], expected: list[str]) -> None:
    """A spec is refused with a line, in these words."""
    text = errors_of(**sections)
    assert re.search(r":\d+:\d+", text)
    for one in expected:
        assert one in text, text
