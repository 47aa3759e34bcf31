"""The training part of the views, and of report.json."""

from __future__ import annotations

import json

from megacompile.report.html import render_html
from megacompile.report.markdown import render_markdown
from megacompile.report.model import Report
from megacompile.report.training import remarks, training_view

from .samples import sample_report
from .training_samples import training_record, training_report


def test_an_inference_report_has_no_trace_of_training() -> None:
    assert '"training"' not in sample_report().to_json()
    assert training_view(sample_report()) is None
    assert "The training step" not in render_html(sample_report())


def test_it_comes_back_from_json() -> None:
    report = training_report()
    again = Report.model_validate_json(report.to_json())
    assert again == report
    found = json.loads(report.to_json())["training"]
    assert found["step_time_ratio"] == {"median": 1.19, "low": 1.17, "high": 1.22}
    assert found["largest_batch"]["optimised"] == 20
    assert found["checkpoints"][0]["chosen"] is True


def test_what_a_reviewer_needs_is_there() -> None:
    page, text = render_html(training_report()), render_markdown(training_report())
    for words in (
        "1.19× [1.17, 1.22]",
        "Largest batch in 1.88 GB",
        "blocks.3",
        "1 graph break",
        "FSDP over 2 processes",
        "0.501× of one process",
        "does not wait for its batch",
        "a note of the run",
    ):
        assert words in page, words
    for words in ("Largest batch", "Checkpointed blocks", "blocks.3"):
        assert words in text, words
    assert "cheapest to compute again" in page


def test_waiting_skipping_and_more_memory_are_said() -> None:
    record = training_record()
    worse = record.optimised.model_copy(update={"waiting": 0.4, "waiting_ms": 12.5, "skipped": 3})
    lines = " ".join(
        remarks(
            record.model_copy(
                update={
                    "optimised": worse,
                    "memory_ratio": 1.3,
                    "waiting_remedy": "load it with `workers: 2`",
                }
            )
        )
    )
    assert "a step waits 12.5 ms for its batch, 40 % of its time; to do: load it with" in lines
    assert "3 steps overflowed" in lines
    assert "needs more memory than the plain one" in lines


def test_without_curves_there_is_no_picture() -> None:
    record = training_record()
    bare = record.plain.model_copy(update={"timeline": [], "losses": [], "operators": []})
    report = training_report().model_copy(
        update={"training": record.model_copy(update={"plain": bare})}
    )
    view = training_view(report)
    assert view is not None
    assert view.pictures == []
    assert "The training step" in render_html(report)
