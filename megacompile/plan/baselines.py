"""What candidates are compared with: the model as people would run it without megacompile."""

from __future__ import annotations

from collections.abc import Sequence

from megacompile.errors import MegacompileError, SpecError, did_you_mean
from megacompile.plan import registry
from megacompile.plan.candidates import CandidatePlan, CandidatePlanner
from megacompile.spec import Loaded

EAGER_BASELINES = ("eager", "torch.compile")
PLAIN_ENGINE = "tensorrt"
# What is evaluated on this CPU in place of an engine for other hardware.
LAST_FORM = "the ONNX file"


def baseline_names(loaded: Loaded, problems: list[MegacompileError]) -> list[str]:
    """The baselines that the spec names, or the usual ones of its model; faults go to `problems`.

    Training has none: its baseline is the plain step.
    """
    benchmark, model = loaded.sections.get("benchmark"), loaded.sections.get("model")
    if benchmark is None or model is None or loaded.sections.get("workload") == "training":
        return []
    torch_source = model.kind != "onnx"
    if benchmark.baselines is None:
        return list(EAGER_BASELINES) if torch_source else ["onnxruntime"]
    names: list[str] = list(benchmark.baselines)
    known = [*EAGER_BASELINES, *registry.backend_table()]
    for index, name in enumerate(names):
        where = loaded.document.where(("benchmark", "baselines", index))
        if name not in known:
            what, near = f"unknown baseline '{name}'", did_you_mean(name, known)
            problems.append(SpecError(what=what, where=where, remedy=near))
        elif name in EAGER_BASELINES and not torch_source:
            problems.append(
                SpecError(
                    what=f"baseline '{name}' needs a PyTorch model",
                    where=where,
                    got="an ONNX file",
                    remedy="use onnxruntime or openvino",
                )
            )
        elif names.index(name) != index:
            problems.append(SpecError(what=f"baseline '{name}' stands twice", where=where))
    if not names:
        where = loaded.document.where(("benchmark", "baselines"))
        remedy = "name one, or leave the key out"
        problems.append(SpecError(what="no baseline", remedy=remedy, where=where))
    return names


def plain_engine(
    loaded: Loaded, planner: CandidatePlanner, candidates: Sequence[CandidatePlan]
) -> CandidatePlan | None:
    """The unchanged model on TensorRT, as one more baseline where the spec names none: it travels
    in a bundle for another machine, where eager PyTorch can't."""
    named = any(one.backend.name == PLAIN_ENGINE for one in candidates)
    if not named or planner.spec.benchmark.baselines is not None:
        return None
    backend = registry.backend_class(PLAIN_ENGINE)()
    found = planner.plan(PLAIN_ENGINE, backend, loaded.document.where(()))
    return found if isinstance(found, CandidatePlan) and found.unavailable is None else None
