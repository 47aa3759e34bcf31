"""`megacompile init`: a first spec for a model, written after looking at it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megacompile.engines import here
from megacompile.errors import MegacompileError, ModelError, SpecError, did_you_mean
from megacompile.plan import make_plan, registry
from megacompile.spec import load_spec_data, parse_document
from megacompile.system import Send, Worker, default_root, hooks

if TYPE_CHECKING:
    from megacompile.commands.guesses import Guesses

FILL_IN = "FILL IN"
KINDS = {".onnx": "onnx", ".pt2": "exported", ".pt": "torchscript"}
Source = Mapping[str, str]


def write_spec(model: str, output: Path | None) -> Path:
    """Look at a model in a process of its own and write a spec for it.

    Raises:
        SpecError: the model can't be found, or the spec's file exists already.
        ModelError: it can't be loaded, or its inputs are of a kind that can't be compiled for.
    """
    kind, file, name = _source(model)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "_", file.stem if file else name.split(".")[-1]).strip("_")
    path = output or (file.parent if file else Path.cwd()) / f"{stem}.yaml"
    if path.exists():
        raise SpecError(
            what="the spec exists already, and init overwrites nothing",
            where=str(path),
            remedy="name another file with --output",
        )
    if not path.parent.is_dir():
        raise SpecError(
            what="no such folder",
            where=str(path.parent),
            remedy="make it, or name another file with --output",
        )
    base = path.parent.resolve()
    reference = model
    if file is not None:
        reference = os.path.relpath(file, base) + (f":{name}" if kind == "python" else "")
    log = default_root() / "init.log"
    log.unlink(missing_ok=True)
    with Worker("the model", "megacompile.commands.spec_writer:serve", log) as worker:
        sketch = worker.ask({"kind": kind, "reference": reference, "base": str(base)})
    text = render(sketch, stem or "model", kind, reference, base)
    make_plan(
        load_spec_data(parse_document(text, str(path)).data, base, str(path)), lambda _: here()
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SpecError(
            what="the spec can't be written", where=str(path), cause=error.strerror
        ) from error
    return path


def to_fill_in(path: Path) -> list[str]:
    """The lines of a spec that wait for their author, with their numbers."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [
        f"{path}:{number}: {line.strip()}"
        for number, line in enumerate(lines, start=1)
        if FILL_IN in line and not line.startswith("#")
    ]


def _source(model: str) -> tuple[str, Path | None, str]:
    """The kind of a model, its file if it is one, and the name inside it."""
    kind = KINDS.get(Path(model).suffix)
    if kind is None:
        if ":" not in model:
            raise SpecError(
                what=f"'{model}' names no model",
                expected="FILE.py:CALLABLE, package.module:CALLABLE, or a file that "
                "ends in .onnx, .pt2 or .pt",
            )
        file, name = hooks.locate(model, Path.cwd())
        return "python", file, name if file else model.rpartition(":")[0]
    path = Path(model)
    if not path.is_file():
        beside = [p.name for p in path.parent.glob(f"*{path.suffix}")]
        raise SpecError(
            what=f"no such file '{model}'",
            where=str(path.parent),
            remedy=did_you_mean(path.name, beside),
        )
    return kind, path.resolve(), path.stem


# In the worker: what the model takes.


def serve(requests: Iterator[dict[str, Any]], send: Send) -> None:
    """Worker function: one request describes one model."""
    for request in requests:
        send({"event": "doing", "what": "looking at the model"})
        send(
            {"event": "done", **look(request["kind"], request["reference"], Path(request["base"]))}
        )


def look(kind: str, reference: str, base: Path) -> dict[str, Any]:
    """Inputs and dims of a model as plain data, found by running it.

    Raises:
        MegacompileError: it can't be loaded.
    """
    from megacompile.commands.guesses import constants_as_inputs
    from megacompile.commands.sizes import Found, Search, Tensor

    guesses, load, known = _loaded(kind, reference, base)
    search = Search(load, constants_as_inputs(guesses.constants))
    found = search.run(list(guesses.tensors.values())) if guesses.tensors else None
    if known:  # an exported program says its sizes itself
        found = Found(tuple(options[0] for options in guesses.tensors.values()), known, True)
    if found is None:
        found = Found(
            tuple(
                (options or [Tensor(name, ("batch",))])[0]
                for name, options in guesses.tensors.items()
            )
        )
        why = "no sizes were found that the model takes"
        cause = f" (last: {search.last_error})" if search.last_error else ""
        guesses.notes.append(why + cause)
        for name in guesses.tensors:
            guesses.unknown.setdefault(name, "shape and dtype")
    dims = dict(found.dims)
    for tensor in found.tensors:
        for size in tensor.shape:
            if isinstance(size, str) and size not in dims:
                dims[size] = (1, 8, 16) if not found.verified else (1, 1, 1)
    entries: dict[str, Any] = {t.name: t.entry() for t in found.tensors}
    entries |= {name: {"value": value} for name, value in guesses.constants.items()}
    return {
        "inputs": {name: entries[name] for name in guesses.order},
        "dims": dims,
        "optional": guesses.optional,
        "unknown": guesses.unknown,
        "notes": guesses.notes,
        "verified": found.verified,
    }


def _loaded(kind: str, reference: str, base: Path) -> tuple[Guesses, Any, dict[str, Any]]:
    """Guesses, a function that gives the form for a signature, and dims known for sure."""
    from megacompile.commands import guesses
    from megacompile.models import Eager, Form, Onnx, Scripted, Signature, bind

    if kind == "onnx":
        path = (base / reference).resolve()
        return guesses.of_onnx(path), lambda s: Onnx(path, _all_outputs(path, s)), {}
    import torch

    from megacompile.models.torchmodules import copy_module

    module: Any
    if kind == "python":
        module = hooks.call(f"model '{reference}'", hooks.load(reference, base))
        if not isinstance(module, torch.nn.Module):
            raise ModelError(
                what=f"'{reference}' returns no model",
                got=type(module).__name__,
                expected="a torch.nn.Module",
            )
        module = copy_module(module).eval()
        found = guesses.of_module(module)
        known: dict[str, Any] = {}
    else:
        try:
            if kind == "torchscript":
                script = torch.jit.load(str(base / reference), map_location="cpu").eval()
                return guesses.of_script(script), lambda s: Scripted(script, s), {}
            program = torch.export.load(base / reference)
        except MegacompileError:
            raise
        except Exception as error:
            raise hooks.fault_of(error, ModelError, f"the {kind} model can't be read") from error
        module = program.module()
        found, known = guesses.of_program(program)

    def load(signature: Signature) -> Form:
        return Eager(module, signature, bind(module.forward, signature.inputs, "forward"))

    return found, load, known


def _all_outputs(path: Path, signature: Any) -> Any:
    from megacompile.models import onnxfile

    outputs = [o.name for o in onnxfile.read(path, weights=False).graph.output]
    return signature.with_outputs(outputs, {}, [])


# In the parent: the spec's text.


def render(sketch: dict[str, Any], name: str, kind: str, reference: str, base: Path) -> str:
    """The spec, with what could be meant besides as comments."""
    data: dict[str, Any] = {"name": name, "model": {kind: reference}, "inputs": sketch["inputs"]}
    if sketch["dims"]:
        data["dims"] = {
            n: {"min": r[0], "typical": r[1], "max": r[2]} for n, r in sketch["dims"].items()
        }
    lines = [f"# {name}: written by `megacompile init`. Lines marked {FILL_IN} wait for you."]
    lines += [f"# {note}" for note in sketch["notes"]]
    lines += [f"name: {_flow(name)}", "model:", f"  {kind}: {_flow(reference)}"]
    if "dims" in data:
        lines.append(
            "# Sizes that may differ from call to call."
            + (" The model runs at these; write yours." if sketch["verified"] else "")
        )
        lines.append("dims:")
        for dim, sizes in data["dims"].items():
            mark = "" if sketch["verified"] else f"  # {FILL_IN}: the sizes you need"
            lines.append(f"  {_flow(dim)}: {_flow(sizes)}{mark}")
    lines.append("# Values of random inputs lie in `range`; without one, floats are normal.")
    lines.append("inputs:")
    for one, entry in data["inputs"].items():
        why = sketch["unknown"].get(one)
        lines.append(f"  {_flow(one)}: {_flow(entry)}" + (f"  # {FILL_IN}: {why}" if why else ""))
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
    baselines = {"onnx": ["onnxruntime"], "torchscript": ["eager"]}.get(
        kind, ["eager", "torch.compile"]
    )
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


PLAIN = re.compile(r"^[A-Za-z_][A-Za-z0-9_./-]*(:[A-Za-z_][A-Za-z0-9_.]*)?$")
WORDS = {"true", "false", "null"}


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
