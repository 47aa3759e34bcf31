"""Realistic reports for the tests: a small sentence encoder on a laptop-class CPU."""

from __future__ import annotations

from megacompile.report.figures import Latency, Metric, Ratio
from megacompile.report.model import (
    AACheck,
    Baseline,
    BuildTime,
    Candidate,
    Ceiling,
    ErrorRecord,
    Gate,
    Provenance,
    Report,
    SitesRecord,
    Skipped,
    Source,
)

from .sample_parts import (
    PARAMETERS,
    POINTS,
    SIZE,
    baselines,
    candidate_bf16,
    candidate_failed,
    candidate_fp32,
    candidate_int8,
    candidate_unavailable,
    environment,
    gates,
    int8_steps,
    metric,
    point,
    step,
)


def sample_report() -> Report:
    """The usual case: a winner, a runner-up, one outside the budget, one failed, one missing."""
    return Report(
        name="minilm",
        created="2026-03-14T09:26:53Z",
        verdict="improved",
        sentence="int8/openvino is 3.04 times faster than eager (95 % interval 2.99 to 3.08) and "
        "a quarter of the size; recall@1 stays within its sampling error.",
        winner="int8/openvino",
        warnings=["The clock frequency rose by 4 % between the first and the last round."],
        source=Source(
            form="Eager",
            reference="minilm.py:build",
            fingerprint="8d1f6a02c4be",
            parameters=PARAMETERS,
            size_bytes=SIZE,
            dims=POINTS[0],
            operations=2.83e9,
            bytes_moved=9.7e7,
        ),
        environment=environment(),
        spec={
            "name": "minilm",
            "model": {"python": "minilm.py:build"},
            "budget": {"metric_drop": 0.01, "size_mb": 60},
            "variants": {
                "int8": {
                    "passes": [{"quantize": {"method": "static"}}],
                    "backends": ["aotinductor", "openvino"],
                }
            },
        },
        baselines=baselines(),
        aa_check=AACheck(ratio=1.002, low=0.989, high=1.014, passed=True),
        candidates=[
            candidate_int8(),
            candidate_failed(),
            candidate_bf16(),
            candidate_fp32(),
            candidate_unavailable(),
        ],
        ceiling=Ceiling(
            rates={"float32": 2.1e11, "bfloat16": 1.3e12, "int8": 2.4e12},
            bandwidth=2.8e10,
            dtype="int8",
            floor_ms=3.46,
            bound="memory",
            reached=0.338,
        ),
        provenance=Provenance(
            command="megacompile build specs/minilm.yaml",
            spec_path="specs/minilm.yaml",
            spec_sha256="3b9c" * 16,
            files={"specs/minilm.py": "77ad" * 16},
            commit="9f2c1ab",
            seed=0,
        ),
        build_seconds=BuildTime(
            total=241.0,
            passes=32.1,
            lowering=67.4,
            verification=21.0,
            measuring=84.6,
            evaluation=30.2,
            own=2.9,
        ),
    )


def withheld_report() -> Report:
    """The A/A check failed: no speed-up may be quoted."""
    report = sample_report()
    report.verdict, report.winner = "no_improvement", None
    report.sentence = "The machine was too restless to tell the candidates from eager."
    report.aa_check = AACheck(
        ratio=1.11,
        low=1.06,
        high=1.17,
        passed=False,
        note="another process took up to 40 % of a core",
    )
    points = [engine.points for engine in report.baselines]
    points += [engine.points for engine in report.candidates]
    for taken in points:
        for one in taken:
            one.speedup = None
    for candidate in report.candidates:
        candidate.versus_best_baseline = None
    return report


def unexecuted(name: str, variant: str, precision: str, engine: int, cosine: float) -> Candidate:
    """A candidate for two GPUs that the building machine doesn't have."""
    files = {
        "model.onnx": 181_000,
        "model.onnx.data": int(engine * 0.9),
        "sm_120.engine": engine,
        "sm_89.engine": engine,
        "tensorrt.json": 120,
    }
    return Candidate(
        name=name,
        variant=variant,
        backend="tensorrt",
        status="built",
        precision=precision,
        steps=int8_steps()[:2],
        lowering=step("tensorrt", "Engine", "NUMERIC", engine, cosine, 2.2),
        files=files,
        size_bytes=sum(files.values()),
        parameters=PARAMETERS,
        metric=metric(0.3085),
        gates=gates(0.0048, cosine, 85.2, 0)[:2],
        executed=False,
    )


def unexecuted_report() -> Report:
    """Everything was built for other hardware: no latency, no winner, exit code 0."""
    report = sample_report()
    report.verdict, report.winner = "built_not_executed", None
    report.sentence = "2 candidates are built and not executed: this machine is not the target."
    report.candidates = [
        unexecuted("int8/tensorrt", "int8", "int8", 30_700_000, 0.995),
        unexecuted("fp32/tensorrt", "fp32", "float32", 95_400_000, 0.9999999),
    ]
    report.baselines = [
        Baseline(
            name="eager",
            status="unavailable",
            reason="this machine has no NVIDIA GPU",
            metric=metric(0.3100),
        ),
        Baseline(name="tensorrt", precision="float32", size_bytes=281_000_000, executed=False),
    ]
    report.aa_check = report.ceiling = None
    return report


def no_improvement_report() -> Report:
    """Everything was built and is inside the budget, and nothing beats the baseline."""
    report = sample_report()
    report.verdict, report.winner, report.warnings = "no_improvement", None, []
    report.sentence = "No candidate is significantly faster than eager."
    report.candidates = [candidate_bf16()]
    report.candidates[0].points = [point(POINTS[0], 31.0, 31.1, 301.0)]
    report.candidates[0].versus_best_baseline = Ratio(median=0.73, low=0.71, high=0.75)
    return report


def failed_report() -> Report:
    """Nothing could be built, and there is little to tell."""
    report = sample_report()
    return report.model_copy(
        update={
            "verdict": "failed",
            "winner": None,
            "sentence": "Nothing could be built.",
            "candidates": [candidate_failed(), candidate_unavailable()],
            "baselines": [],
            "aa_check": None,
            "ceiling": None,
            "source": None,
            "build_seconds": None,
            "warnings": [],
        }
    )


def plain_report() -> Report:
    """One candidate, one point, no metric, no baselines, no histogram."""
    report = sample_report()
    only = candidate_int8()
    only.metric, only.gates, only.points = {}, [], only.points[:1]
    only.points[0].histogram, only.points[0].speedup = [], None
    only.versus_best_baseline = None
    update = {"candidates": [only], "baselines": [], "aa_check": None, "warnings": []}
    return report.model_copy(update=update)


def large_report() -> Report:
    """Twenty candidates with long names, one plan of 6,000 steps, one of 6,000 skipped sites."""
    report = sample_report()
    many = [candidate_int8()]
    for at in range(19):
        one = candidate_bf16()
        one.name = f"variant-with-a-rather-long-name-number-{at:02d}-of-many/aotinductor-max"
        one.points = [point(POINTS[0], 12.0 + at * 1.7, 31.1, 300.0 + at)]
        one.size_bytes = 40_000_000 + at * 2_500_000
        many.append(one)
    long = SitesRecord(
        kind="node",
        matched=6000,
        changed=0,
        skipped=[
            Skipped(site=f"graph.node_{at}", reason=f"reason {at % 30}") for at in range(6000)
        ],
    )
    many[0].steps[3].sites = long
    many[1].steps = [step(f"pass-{at}", "Onnx", "EXACT", SIZE, 1.0, 0.01) for at in range(6000)]
    report.candidates = many
    return report


def hostile_report() -> Report:
    """Text that would break out of HTML, Markdown or a table."""
    report = sample_report()
    evil = "<script>alert(1)</script>|`x`\"'&"
    report.name = report.sentence = evil
    report.warnings = [evil, "line one\nline two"]
    report.candidates[1].name = report.candidates[1].reason = evil
    report.candidates[0].steps[3].sites = SitesRecord(
        kind=evil, matched=2, changed=1, skipped=[Skipped(site=evil, reason=evil)]
    )
    report.spec = {evil: evil}
    report.environment.versions = {evil: evil}
    report.provenance.command = evil
    report.baselines[0].name = evil
    return report


def broken_numbers_report() -> Report:
    """Figures that are not numbers, as a model that went wrong gives them."""
    report = sample_report()
    nan, infinite = float("nan"), float("inf")
    one = report.candidates[0]
    one.points[0].latency_ms = Latency(p50=10.0, p95=nan, p99=infinite, mean=nan, count=3)
    one.points[0].histogram = [nan] * 50
    one.points[0].speedup = Ratio(median=nan, low=nan, high=infinite)
    one.points[1].latency_ms.p50 = nan
    one.points[1].peak_memory_mb = nan
    one.metric = {"recall@1": Metric(value=nan, standard_error=nan)}
    one.gates = [Gate(name="cosine", limit=0.99, value=nan, passed=False)]
    for done in one.steps:
        done.error = ErrorRecord(max_abs=infinite, relative=nan, cosine_min=nan)
    one.lowering = None
    report.aa_check = AACheck(ratio=nan, low=nan, high=nan, passed=False)
    report.ceiling = Ceiling(rates={"float32": nan}, bandwidth=infinite, floor_ms=nan, reached=nan)
    return report


def later_report() -> Report:
    """The next build: int8 is slower and larger, bf16 is gone, fp32 fits its new budget."""
    report = sample_report()
    report.created = "2026-03-21T10:11:12Z"
    report.winner = "int8/openvino"
    int8 = report.candidates[0]
    int8.points = [point(POINTS[0], 12.9, 31.4, 241.0), point(POINTS[1], 71.0, 219.0, 268.0)]
    int8.size_bytes = 31_500_000
    int8.metric = {"recall@1": Metric(value=0.2610, standard_error=0.0098, samples=2000)}
    int8.gates = gates(0.158, 0.98, 31.5, 2.434)
    int8.parameters = PARAMETERS - 1024
    fp32 = report.candidates[3]
    fp32.status, fp32.reason, fp32.remedy = "built", None, None
    fp32.gates = gates(0.0, 0.9999999, 59.0, 1.587)
    del report.candidates[2]
    report.spec = report.spec | {"budget": {"metric_drop": 0.2, "size_mb": 95}, "seed": 1}
    report.environment.versions = report.environment.versions | {"openvino": "2026.0.0"}
    return report


def moved_report() -> Report:
    """The later build on another machine."""
    report = later_report()
    report.environment = environment(machine="AMD EPYC 9654 (4 of 96 cores)", threads=4)
    return report
