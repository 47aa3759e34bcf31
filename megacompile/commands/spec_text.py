"""The text of a first spec, with what could be meant besides as comments."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from megacompile.engines import here
from megacompile.errors import MegacompileError, ModelError
from megacompile.plan import make_plan, registry
from megacompile.spec import load_spec_data

FILL_IN = "FILL IN"
# Strings that YAML reads as such without quotes, and words that it would read otherwise.
PLAIN = re.compile(r"^[A-Za-z_][A-Za-z0-9_./-]*(:[A-Za-z_][A-Za-z0-9_.]*)?$")
WORDS = {"true", "false", "null"}
BASELINES = {"onnx": ["onnxruntime"], "torchscript": ["eager"]}


def render(sketch: dict[str, Any], name: str, kind: str, reference: str, base: Path) -> str:
    """The spec, with what could be meant besides as comments."""
    data: dict[str, Any] = {"name": name, "model": {kind: reference}, "inputs": sketch["inputs"]}
    if sketch["dims"]:
        named = ("min", "typical", "max")
        data["dims"] = {dim: dict(zip(named, r, strict=True)) for dim, r in sketch["dims"].items()}
    lines = [f"# {name}: written by `megacompile init`. Lines marked {FILL_IN} wait for you."]
    lines += [f"# {note}" for note in sketch["notes"]]
    lines += [f"name: {_flow(name)}", "model:", f"  {kind}: {_flow(reference)}"]
    if "dims" in data:
        known, mark = " The model runs at these; write yours.", ""
        if not sketch["verified"]:
            known, mark = "", f"  # {FILL_IN}: the sizes you need"
        lines += [f"# Sizes that may differ from call to call.{known}", "dims:"]
        lines += [f"  {_flow(dim)}: {_flow(r)}{mark}" for dim, r in data["dims"].items()]
    lines.append("# Values of random inputs lie in `range`; without one, floats are normal.")
    lines.append("inputs:")
    for one, entry in data["inputs"].items():
        why = sketch["unknown"].get(one)
        mark = f"  # {FILL_IN}: {why}" if why else ""
        lines.append(f"  {_flow(one)}: {_flow(entry)}{mark}")
    for one in sketch["optional"]:
        lines.append(f"  # {one}: {{shape: [batch], dtype: float32, optional: true, default: 1}}")
    lines += _rest(data, kind, base)
    return "\n".join(lines) + "\n"


def _rest(data: dict[str, Any], kind: str, base: Path) -> list[str]:
    int8: list[Any] = [{"quantize": {"method": "static"}}]
    bf16: list[Any] = [{"cast": {"dtype": "bfloat16"}}]
    plain = _fitting(data, base, [])
    if not plain:
        raise ModelError(
            what=f"no backend that can run here takes a model from '{kind}'",
            remedy="`megacompile backends` says what is missing",
        )
    lines = [
        "# outputs: [name]        # names of the outputs, in order",
        "target: {device: cpu, threads: auto}",
        "# data:                  # hooks in a Python file beside this spec",
        "#   calibration: {python: hooks.py:calibration, samples: 64}  # yields {input: array}",
        '#   evaluation: {python: hooks.py:evaluate}  # evaluate(run) -> {"accuracy": 0.97}',
        "# passes: [simplify]     # for every variant, in this order; `megacompile passes`",
        "variants:                # all variants on all their backends race",
        f"  fp32: {{backends: {_flow(plain)}}}",
    ]
    for name, passes, remark in (("int8", int8, "  # needs data.calibration"), ("bf16", bf16, "")):
        backends = _fitting(data, base, passes)
        if backends:
            entry = {"passes": passes, "backends": backends}
            lines.append(f"  # {name}: {_flow(entry)}{remark}")
    baselines = BASELINES.get(kind, ["eager", "torch.compile"])
    lines += [
        "# budget:                # a candidate outside it can't win",
        "#   cosine: 0.99         # of the worst sample, against the original",
        "#   metric_drop: 0.01    # needs data.evaluation",
        "#   size_mb: 100",
        "benchmark:",
        f"  baselines: {_flow(baselines)}  # speed-ups are quoted against the first",
    ]
    if "dims" in data:
        point = {name: dim["typical"] for name, dim in data["dims"].items()}
        lines.append(f"  points: {_flow([point])}")
    return lines


def _fitting(data: dict[str, Any], base: Path, passes: list[Any]) -> list[str]:
    """Backends that can run here and that a plan leads to."""
    found = []
    for name in sorted(registry.backend_table()):
        spec = {
            **data,
            "passes": passes,
            "backends": [name],
            "data": {"calibration": {"python": "hooks.py:calibration"}},
        }
        try:
            plan = make_plan(load_spec_data(spec, base), lambda _: here())
        except MegacompileError:
            continue
        if plan.candidates[0].unavailable is None and name != "torch-compile":
            found.append(name)
    return found


def _flow(value: Any) -> str:
    """YAML on one line; strings are quoted only where they must be."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_flow(k)}: {_flow(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_flow, value)) + "]"
    if isinstance(value, str):
        return value if PLAIN.match(value) and value.lower() not in WORDS else json.dumps(value)
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return json.dumps(value)
