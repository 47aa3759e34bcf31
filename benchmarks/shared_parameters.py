"""What `share-parameters` leaves of MiniLM's encoder in every engine's files.

    python benchmarks/shared_parameters.py [ENGINE ...] [--every 2] [--list]

Builds the sentence encoder of `specs/minilm.yaml` twice for every engine and precision, as it is
and with repeated blocks sharing their parameters, and prints a Markdown table. An encoder's share
is read off the files: the bytes that sharing saves, of the bytes that the encoder's parameters
take in that precision. Groups of two should leave one half. Sizes don't depend on the machine's
speed; the packages of `aotinductor` and `torch-compile` also hold code for this CPU.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from megacompile.builder import main as builder
from megacompile.builder.keys import FORM
from megacompile.builder.worker import build_candidate
from megacompile.errors import MegacompileError
from megacompile.measure.original import examine
from megacompile.plan.planner import make_plan
from megacompile.spec.load import load_spec_data
from megacompile.system.cache import Cache

SPECS = Path(__file__).resolve().parents[1] / "specs"
# Parameters of MiniLM's encoder, counted from its sizes: six layers of matrices and, in float
# whatever the precision, biases and norms.
MATRICES = 6 * (4 * 384 * 384 + 2 * 384 * 1536)
VECTORS = 6 * (4 * 384 + 1536 + 384 + 4 * 384)

STATIC, DYNAMIC, WEIGHTS = (
    {"quantize": {"method": m}} for m in ("static", "dynamic", "weight-only")
)
BFLOAT16 = {"cast": {"dtype": "bfloat16"}}
PASSES: dict[str, list[Any]] = {
    "float32": [],
    "bfloat16": [BFLOAT16],
    "int8 static": [STATIC],
    "int8 dynamic": [DYNAMIC],
    "int8 weight-only": [WEIGHTS],
}
MATRIX_BYTES = {"float32": 4, "bfloat16": 2}  # else int8
ENGINES = {
    "torchscript": ["float32"],
    "onnxruntime": ["float32", "int8 static", "int8 dynamic", "int8 weight-only"],
    "openvino": ["float32", "bfloat16", "int8 static", "int8 weight-only"],
    "torch-compile": ["float32", "int8 static", "int8 weight-only"],
    "aotinductor": ["float32", "bfloat16", "int8 static", "int8 dynamic", "int8 weight-only"],
    "tensorrt": ["float32", "bfloat16", "int8 static"],
}


def spec_of(engine: str, precision: str, share: list[Any]) -> dict[str, Any]:
    """`minilm.yaml` for one engine, without its metric: only files are looked at."""
    source = "minilm_tensorrt.yaml" if engine == "tensorrt" else "minilm.yaml"
    whole = yaml.safe_load((SPECS / source).read_text())
    kept = {key: whole[key] for key in ("name", "model", "inputs", "outputs", "target")}
    if engine == "tensorrt":
        kept["target"]["arch"] = ["sm_89"]
    return {
        **kept,
        "dims": {
            "batch": {"min": 1, "typical": 2, "max": 4},
            "seq": {"min": 4, "typical": 16, "max": 128},
        },
        "data": {"calibration": {"python": "minilm.py:sentences", "samples": 8}},
        "backends": [engine],
        "passes": [*share, *PASSES[precision]],
        "benchmark": {"baselines": ["eager"]},
    }


def size_of(data: dict[str, Any]) -> int:
    """Bytes of the engine's own files. Raises MegacompileError where it can't be built."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        loaded = load_spec_data(data, SPECS)
        plan = make_plan(loaded, builder.resolve_target)
        (chosen,) = plan.candidates
        if chosen.unavailable is not None:
            raise MegacompileError(what=chosen.unavailable.reason)
        (work / "inspection").mkdir()
        original = examine(plan.spec, SPECS, work / "inspection")
        events: list[dict[str, Any]] = []
        request = {
            "spec": plan.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
            "base": str(SPECS),
            "cache": str(work / "cache"),
            "quantized": False,
            "machine": dataclasses.asdict(plan.target),
            "original": original.to_dict(),
            "candidate": chosen.name,
            "variant": chosen.variant,
            "dump": None,
            "verify_each": False,
        }
        build_candidate(request, events.append)
        key = next(event["key"] for event in events if event["event"] == "engine")
        entry = Cache(work / "cache").get(key)
        assert entry is not None
        # TensorRT's model lies beside its engine, to be built again where the GPU is.
        pattern = "*.engine" if chosen.backend.name == "tensorrt" else "*"
        files = (entry.folder / FORM).rglob(pattern)
        return sum(file.stat().st_size for file in files if file.is_file())


def _sizes(send: Any, engine: str, precision: str, share: list[Any]) -> None:
    try:
        send.put(size_of(spec_of(engine, precision, share)))
    except MegacompileError as error:
        send.put(" ".join(str(error).split()))


def apart(engine: str, precision: str, share: list[Any]) -> int | str:
    """`size_of` in a process of its own, or the reason why there is no engine."""
    context = multiprocessing.get_context("spawn")
    answers: Any = context.Queue()
    process = context.Process(target=_sizes, args=(answers, engine, precision, share))
    process.start()
    found: int | str = answers.get()
    process.join()
    return found


def row(engine: str, precision: str, every: int) -> str:
    share = [{"share-parameters": {"mode": "group", "every": every}}]
    before, after = apart(engine, precision, []), apart(engine, precision, share)
    if isinstance(before, str) or isinstance(after, str):
        return f"| {engine} | {precision} | {before} | {after} | |"
    encoder = MATRICES * MATRIX_BYTES.get(precision, 1)
    encoder += VECTORS * min(4, MATRIX_BYTES.get(precision, 4))
    left = 1 - (before - after) / encoder
    return f"| {engine} | {precision} | {before / 1e6:.1f} | {after / 1e6:.1f} | {left:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("engine", nargs="*", help="ENGINE, or ENGINE/PRECISION; default: all")
    parser.add_argument("--every", type=int, default=2, help="blocks that share")
    parser.add_argument("--list", action="store_true", help="name the engines and precisions")
    chosen = parser.parse_args()
    cases = [(engine, precision) for engine in ENGINES for precision in ENGINES[engine]]
    if chosen.engine:
        wanted = set(chosen.engine)
        cases = [(e, p) for e, p in cases if wanted & {e, f"{e}/{p}"}]
    if chosen.list or not cases:
        sys.exit("\n".join(f"{engine}/{precision}" for engine, precision in cases))
    print("| engine | precision | MB | MB shared | encoder left |\n|---|---|---|---|---|")
    for engine, precision in cases:
        print(row(engine, precision, chosen.every), flush=True)


if __name__ == "__main__":
    main()
