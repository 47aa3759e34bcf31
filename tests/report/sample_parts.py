"""Parts of realistic reports: points, steps, gates and candidates of a small sentence encoder."""

from __future__ import annotations

from typing import Literal

from megacompile.report.figures import Latency, Metric, Ratio
from megacompile.report.model import (
    Baseline,
    Candidate,
    Environment,
    ErrorRecord,
    Gate,
    Point,
    SitesRecord,
    Skipped,
    Step,
)

POINTS: list[dict[str, int]] = [{"batch": 1, "seq": 128}, {"batch": 8, "seq": 128}]
SIZE = 90_868_224
PARAMETERS = 22_713_216


def quantiles(median: float, spread: float, tail: float, count: int = 100) -> list[float]:
    """Evenly spaced quantiles of a steady latency with a tail to the right, without chance."""
    values = []
    for at in range(count):
        share = (at + 0.5) / count
        centre = (share - 0.5) * 2
        values.append(round(median * (1 + spread * centre**3 + tail * share**24), 4))
    return values


def point(dims: dict[str, int], median: float, reference: float | None, memory: float) -> Point:
    """One benchmark point; the speed-up is against `reference`."""
    taken = quantiles(median, 0.04, 0.35)
    speedup = None
    if reference is not None:
        ratio = reference / median
        speedup = Ratio(
            median=round(ratio, 3), low=round(ratio * 0.984, 3), high=round(ratio * 1.015, 3)
        )
    return Point(
        dims=dims,
        latency_ms=Latency(
            p50=median,
            p95=taken[94],
            p99=taken[98],
            mean=round(sum(taken) / len(taken), 4),
            count=240,
        ),
        histogram=taken,
        throughput=round(dims.get("batch", 1) / median * 1000, 1),
        speedup=speedup,
        peak_memory_mb=memory,
    )


def step(
    name: str,
    form: str,
    effect: Literal["EXACT", "NUMERIC", "LOSSY"],
    size: int,
    cosine: float,
    seconds: float,
    *,
    sites: SitesRecord | None = None,
    inserted: bool = False,
    cached: bool = False,
    options: dict[str, object] | None = None,
    note: str | None = None,
) -> Step:
    """One step with plausible figures."""
    return Step.model_validate(
        {
            "pass": name,
            "form": form,
            "effect": effect,
            "inserted": inserted,
            "cached": cached,
            "cache_reason": "same input, options and source" if cached else None,
            "seconds": seconds,
            "peak_memory_mb": 612.0,
            "sites": sites,
            "notes": [note] if note else [],
            "options": options or {},
            "size_bytes": size,
            "parameters": PARAMETERS,
            "error": ErrorRecord(
                max_abs=round(1 - cosine, 7) * 3,
                relative=round(1 - cosine, 7),
                cosine_min=cosine,
                inputs=4,
                worst="embedding, sample 17",
            ),
        }
    )


def metric(value: float) -> dict[str, Metric]:
    return {"recall@1": Metric(value=value, standard_error=0.0104, samples=2000)}


def gates(drop: float, cosine: float, size: float, speedup: float) -> list[Gate]:
    """The budget's gates, judged."""
    return [
        Gate(name="metric_drop", limit=0.01, value=drop, passed=drop <= 0.01),
        Gate(name="cosine", limit=0.99, value=cosine, passed=cosine >= 0.99),
        Gate(name="size_mb", limit=60, value=size, passed=size <= 60),
        Gate(name="speedup", limit=1.5, value=speedup, passed=speedup >= 1.5),
        Gate(name="dead_channels", limit=None, value=0, passed=True),
    ]


def int8_steps() -> list[Step]:
    skipped = [
        Skipped(site=f"encoder.layer.{at}.attention.softmax", reason="no weight to quantize")
        for at in range(6)
    ]
    return [
        step("export", "Exported", "EXACT", SIZE, 1.0, 6.4, inserted=True),
        step(
            "simplify",
            "Exported",
            "EXACT",
            SIZE,
            1.0,
            1.1,
            cached=True,
            sites=SitesRecord(kind="node", matched=74, changed=74),
        ),
        step("to-onnx", "Onnx", "EXACT", SIZE + 140_000, 0.9999999, 9.8, inserted=True),
        step(
            "quantize",
            "Onnx",
            "LOSSY",
            23_411_000,
            0.99631,
            14.2,
            options={"method": "static", "per_channel": True},
            sites=SitesRecord(kind="linear", matched=42, changed=36, skipped=skipped),
            note="64 calibration samples, 95th percentile ranges",
        ),
    ]


def candidate_int8() -> Candidate:
    return Candidate(
        name="int8/openvino",
        variant="int8",
        backend="openvino",
        status="built",
        precision="int8",
        steps=int8_steps(),
        lowering=step("openvino", "Engine", "NUMERIC", 23_104_512, 0.99604, 4.9),
        points=[point(POINTS[0], 10.24, 31.1, 214.0), point(POINTS[1], 71.3, 219.4, 268.0)],
        versus_best_baseline=Ratio(median=2.21, low=2.17, high=2.26),
        size_bytes=23_104_512,
        files={"model.xml": 812_512, "model.bin": 22_292_000},
        parameters=PARAMETERS,
        load_seconds=0.41,
        metric=metric(0.3085),
        gates=gates(0.0048, 0.99604, 23.1, 3.037),
    )


def candidate_bf16() -> Candidate:
    return Candidate(
        name="bf16/aotinductor",
        variant="bf16",
        backend="aotinductor",
        status="built",
        precision="bfloat16",
        steps=[
            step("export", "Exported", "EXACT", SIZE, 1.0, 6.4, inserted=True, cached=True),
            step("simplify", "Exported", "EXACT", SIZE, 1.0, 1.1, cached=True),
            step(
                "cast",
                "Exported",
                "NUMERIC",
                45_434_112,
                0.99987,
                0.7,
                options={"dtype": "bfloat16"},
            ),
        ],
        lowering=step("aotinductor", "Engine", "NUMERIC", 46_920_000, 0.99985, 61.3),
        points=[point(POINTS[0], 17.9, 31.1, 301.0), point(POINTS[1], 118.0, 219.4, 377.0)],
        versus_best_baseline=Ratio(median=1.26, low=1.23, high=1.29),
        size_bytes=46_920_000,
        parameters=PARAMETERS,
        load_seconds=0.09,
        metric=metric(0.3100),
        gates=gates(0.0, 0.99985, 46.9, 1.737),
    )


def candidate_fp32() -> Candidate:
    return Candidate(
        name="fp32/onnxruntime",
        variant="fp32",
        backend="onnxruntime",
        status="outside_budget",
        reason="size_mb: 91.0 is above the limit 60",
        precision="float32",
        remedy="raise budget.size_mb, or quantize the weights",
        steps=[
            step("export", "Exported", "EXACT", SIZE, 1.0, 6.4, inserted=True, cached=True),
            step("to-onnx", "Onnx", "EXACT", SIZE + 140_000, 0.9999999, 9.8, inserted=True),
        ],
        lowering=step("onnxruntime", "Engine", "EXACT", 91_008_000, 0.9999999, 1.2),
        points=[point(POINTS[0], 19.6, 31.1, 334.0), point(POINTS[1], 140.2, 219.4, 402.0)],
        versus_best_baseline=Ratio(median=1.15, low=1.13, high=1.18),
        size_bytes=91_008_000,
        parameters=PARAMETERS,
        load_seconds=0.35,
        metric=metric(0.3100),
        gates=gates(0.0, 0.9999999, 91.0, 1.587),
    )


def candidate_failed() -> Candidate:
    return Candidate(
        name="int8/aotinductor",
        variant="int8",
        backend="aotinductor",
        status="failed",
        reason="the compiler ended with signal 9 (out of memory) while lowering",
        remedy="set TORCHINDUCTOR_COMPILE_THREADS=1, or build on a machine with 16 GB",
        failed_step="aotinductor",
        steps=int8_steps()[:2],
    )


def candidate_unavailable() -> Candidate:
    return Candidate(
        name="fp16/tensorrt",
        variant="fp16",
        backend="tensorrt",
        status="unavailable",
        reason="no CUDA device on this machine",
        remedy="build on a machine with an NVIDIA GPU, or take tensorrt out of the variant",
    )


def environment(**changes: object) -> Environment:
    base: dict[str, object] = {
        "machine": "Intel Xeon Platinum 8480+ (2 of 112 cores)",
        "isa": ["avx2", "avx512f", "avx512_vnni", "amx_int8", "amx_bf16"],
        "cores": 2,
        "threads": 2,
        "memory_mb": 8192,
        "system": "Linux 6.8.0 x86_64",
        "python": "3.11.9",
        "load_average": 0.31,
        "versions": {
            "megacompile": "0.1.0",
            "torch": "2.9.1",
            "onnx": "1.20.0",
            "onnxruntime": "1.23.2",
            "openvino": "2025.4.0",
        },
    }
    return Environment.model_validate(base | changes)


def baselines() -> list[Baseline]:
    compiled = [point(POINTS[0], 22.6, 31.1, 388.0), point(POINTS[1], 161.0, 219.4, 455.0)]
    return [
        Baseline(
            name="eager",
            precision="float32",
            metric=metric(0.3100),
            size_bytes=SIZE,
            points=[point(POINTS[0], 31.1, None, 402.0), point(POINTS[1], 219.4, None, 489.0)],
        ),
        Baseline(
            name="torch.compile",
            precision="float32",
            metric=metric(0.3100),
            size_bytes=SIZE,
            points=compiled,
            load_seconds=38.0,
        ),
    ]
