"""`megacompile init`: a first spec for a model, written after looking at it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from megacompile.commands.spec_text import FILL_IN, render
from megacompile.engines import here
from megacompile.errors import SpecError, did_you_mean
from megacompile.plan import make_plan
from megacompile.spec import load_spec_data, parse_document
from megacompile.system import Worker, default_root, hooks

PROBE = "megacompile.commands.probe:serve"
KINDS = {".onnx": "onnx", ".pt2": "exported", ".pt": "torchscript"}


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
    with Worker("the model", PROBE, log) as worker:
        sketch = worker.ask({"kind": kind, "reference": reference, "base": str(base)})
    text = render(sketch, stem or "model", kind, reference, base)
    written = load_spec_data(parse_document(text, str(path)).data, base, str(path))
    make_plan(written, lambda _: here())  # what is written can be planned
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
