"""Which ONNX models become TensorRT engines, and what a user reads where one doesn't.

    python benchmarks/tensorrt_models.py [NAME ...]

Every model that is found in an installed package (rapidocr-onnxruntime, silero-vad, magika,
basic-pitch, onnx's own light models) goes through `megacompile init` and a cross-build for sm_89
and sm_120: as it is, and after `simplify`. Where sizes can't be guessed, they stand below. Prints a
Markdown table.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tempfile
from pathlib import Path

import yaml

import megacompile
from megacompile.commands.spec_writer import write_spec
from megacompile.errors import MegacompileError
from megacompile.report.model import Candidate

PLACES = {
    "rapidocr_onnxruntime": "models/*.onnx",
    "silero_vad": "data/*.onnx",
    "magika": "models/**/*.onnx",
    "basic_pitch": "saved_models/**/*.onnx",
    "onnx": "backend/test/data/light/*.onnx",
}
ARCHS = ["sm_89", "sm_120"]
BATCH = {"min": 1, "typical": 1, "max": 8}
# Sizes that `init` can't know: what these models were made for, from their own projects.
SPEECH = {
    "dims": {"batch": BATCH},
    "inputs": {
        "input": {"shape": ["batch", 512], "range": [-1, 1]},
        "state": {"shape": [2, "batch", 128], "range": [0, 0]},
        "sr": {"shape": [], "dtype": "int64", "range": [16000, 16000]},
    },
}
KNOWN = {
    "ch_PP-OCRv4_rec_infer": {
        "dims": {"batch": BATCH, "width": {"min": 32, "typical": 480, "max": 960}},
        "inputs": {"x": {"shape": ["batch", 3, 48, "width"], "range": [-1, 1]}},
    },
    "ch_ppocr_mobile_v2.0_cls_infer": {
        "dims": {"batch": BATCH},
        "inputs": {"x": {"shape": ["batch", 3, 48, 192], "range": [-1, 1]}},
    },
    "silero_vad": SPEECH,
    "silero_vad_16k_op15": SPEECH,
    "silero_vad_op18_ifless": {
        **SPEECH,
        "inputs": {name: SPEECH["inputs"][name] for name in ("input", "sr", "state")},
    },
    "silero_vad_half": {
        **SPEECH,
        "inputs": {name: SPEECH["inputs"][name] for name in ("input", "state")},
    },
}


def models() -> list[Path]:
    """Files in installed packages; the packages are not imported."""
    found: list[Path] = []
    for package, pattern in PLACES.items():
        spec = importlib.util.find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            print(f"not installed: {package}", file=sys.stderr)
            continue
        found += sorted(Path(next(iter(spec.submodule_search_locations))).glob(pattern))
    return found


def row(path: Path, folder: Path) -> tuple[str, str, str]:
    """Engine sizes or messages, plain and simplified."""
    local = folder / path.name
    os.symlink(path, local)
    try:
        spec = yaml.safe_load(write_spec(str(local), folder / "spec.yaml").read_text())
    except MegacompileError as error:
        if path.stem not in KNOWN:
            return path.stem, f"`init`: {short(error)}", ""
        spec = {"name": "model", "model": {"onnx": path.name}}
    spec |= KNOWN.get(path.stem, {})
    spec = {key: spec[key] for key in ("name", "model", "dims", "inputs") if spec.get(key)}
    spec |= {
        "target": {"device": "cuda", "arch": ARCHS},
        "backends": ["tensorrt"],
        "benchmark": {"baselines": ["tensorrt"]},
        "variants": {"plain": {}, "simplified": {"passes": ["simplify"]}},
    }
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    options = megacompile.Options(
        build_dir=folder / "b", report_dir=folder / "r", cache_dir=folder / "c"
    )
    try:
        report = megacompile.build(folder / "spec.yaml", options).report
    except MegacompileError as error:
        return path.stem, short(error), ""
    plain, simplified = report.candidates
    return path.stem, said(plain), said(simplified)


def said(candidate: Candidate) -> str:
    if candidate.status == "built":
        sizes = [candidate.files[f"{arch}.engine"] / 1e6 for arch in ARCHS]
        return "engines of " + " and ".join(f"{size:.1f}" for size in sizes) + " MB"
    return f"{candidate.status}: {candidate.reason} To do: {candidate.remedy}"


def short(error: MegacompileError) -> str:
    return " ".join(str(error).split())


def main() -> None:
    wanted = sys.argv[1:]
    print("| model | as it is | after `simplify` |\n|---|---|---|")
    for path in models():
        if wanted and path.stem not in wanted:
            continue
        with tempfile.TemporaryDirectory() as folder:
            cells = row(path, Path(folder))
        print("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    main()
