"""What each pass did, step by step, as data for the page."""

from __future__ import annotations

from megacompile.report.model import ErrorRecord, SitesRecord, Skipped
from megacompile.report.waterfall import SHOWN_SITES, SHOWN_STEPS, waterfall

from . import samples


def test_steps_stand_in_order_with_the_engines_own_last() -> None:
    report = samples.sample_report()
    view = waterfall(report, report.candidates[0])
    assert [one.name for one in view.steps] == [
        "export",
        "simplify",
        "to-onnx",
        "quantize",
        "openvino",
    ]
    assert view.steps[0].marks == ["inserted by the planner"]
    assert view.steps[1].marks == ["from the cache"]
    assert view.steps[-1].marks == ["lowering"]
    assert view.rest == ""


def test_sizes_are_against_the_step_before() -> None:
    report = samples.sample_report()
    export, _, onnx, quantize, _ = waterfall(report, report.candidates[0]).steps
    assert export.size_text == "90.9 MB", "nothing changed"
    assert onnx.size_text == "90.9 MB → 91.0 MB (+0.15 %)"
    assert quantize.size_text == "91.0 MB → 23.4 MB (−74 %)"


def test_a_long_plan_is_capped_and_keeps_the_engines_step() -> None:
    report = samples.large_report()
    view = waterfall(report, report.candidates[1])
    assert len(view.steps) == SHOWN_STEPS + 1
    assert view.steps[-1].marks == ["lowering"]
    assert view.rest == "and 5,960 more steps"


def test_sites_that_were_left_are_gathered_by_reason() -> None:
    report = samples.sample_report()
    left = [Skipped(site=f"s{at}", reason="kept") for at in range(5)]
    left.append(Skipped(site="head", reason="too small"))
    step = report.candidates[0].steps[3]
    step.sites = SitesRecord(kind="linear", matched=8, changed=2, skipped=left)
    view = waterfall(report, report.candidates[0]).steps[3]
    assert view.sites == "2 of 8 linears changed, 6 left"
    assert [(one.count, one.reason) for one in view.skipped] == [(5, "kept"), (1, "too small")]
    assert view.skipped[0].sites == "s0, s1, s2 and 2 more sites"
    assert SHOWN_SITES == 3


def test_an_error_names_its_worst_place_and_dead_channels() -> None:
    report = samples.sample_report()
    report.candidates[0].steps[3].error = ErrorRecord(
        max_abs=1.0,
        relative=0.5,
        cosine_min=0.75,
        worst="logits",
        dead_channels=["c0", "c1", "c2", "c3"],
        note="emulated",
    )
    view = waterfall(report, report.candidates[0]).steps[3]
    assert view.error == "cosine 0.75, relative 0.5"
    assert view.error_note == (
        "worst: logits; dead channels: c0, c1, c2 and 1 more channel; emulated"
    )


def test_an_exact_step_has_no_worst_place() -> None:
    report = samples.sample_report()
    view = waterfall(report, report.candidates[0]).steps[0]
    assert (view.error, view.error_note) == ("cosine 1, relative 0", "")
    report.candidates[0].steps[0].error = None
    view = waterfall(report, report.candidates[0]).steps[0]
    assert (view.error, view.error_note) == ("", "")
