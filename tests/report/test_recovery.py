"""What recovery brought back, in the views and in report.json."""

from __future__ import annotations

import json

from megacompile.report.figures import Metric
from megacompile.report.html import render_html
from megacompile.report.markdown import render_markdown
from megacompile.report.model import Report
from megacompile.report.recovery import recovery_line, recovery_views
from megacompile.report.trained import Look, RecoveryRecord

from .samples import sample_report


def record(**changes: object) -> RecoveryRecord:
    looks = [Look(step=step, value=value) for step, value in ((0, 0.8), (50, 0.2), (100, 0.3))]
    values = {
        "metric_before": {"recall@1": Metric(value=0.124)},
        "metric_after": {"recall@1": Metric(value=0.351)},
        "monitor": "held-out loss",
        "looks": looks,
        "best_step": 50,
        "steps": 100,
        "planned_steps": 400,
        "samples": 16_464,
        "trained_parameters": 5_300_000,
        "learning_rate": 7e-4,
        "seconds": 1212.0,
        "losses": [0.9, 0.2],
        **changes,
    }
    return RecoveryRecord.model_validate(values)


def recovered() -> Report:
    report = sample_report().model_copy(deep=True)
    report.candidates[0].recovery = report.recovery = record()
    return report


def test_a_report_without_recovery_has_no_trace_of_it() -> None:
    assert '"recovery"' not in sample_report().to_json()
    assert recovery_views(sample_report()) == []
    assert "recovery" not in render_html(sample_report())


def test_the_json_holds_both_metrics_and_comes_back() -> None:
    report = recovered()
    found = json.loads(report.to_json())
    for one in (found["recovery"], found["candidates"][0]["recovery"]):
        assert one["metric_before"]["recall@1"]["value"] == 0.124
        assert one["metric_after"]["recall@1"]["value"] == 0.351
    assert Report.model_validate_json(report.to_json()) == report


def test_the_views_show_before_after_and_what_was_kept() -> None:
    page, text = render_html(recovered()), render_markdown(recovered())
    for words in ("What recovery brought back", "Held-out loss over 100 steps", "after step 50"):
        assert words in page
    for words in ("0.124", "0.351", "100 of 400 steps", "16,464 samples", "weights of step 50"):
        assert words in page, words
        assert words in text, words


def test_the_monitored_value_is_that_of_the_kept_weights() -> None:
    (view,) = recovery_views(recovered())
    assert view.rows[-1] == ("held-out loss", "—", "0.8000", "0.2000")
    assert "learning rate 0.0007" in view.line


def test_a_monitored_metric_stands_once() -> None:
    report = recovered()
    report.candidates[0].recovery = record(monitor="recall@1")
    assert [row[0] for row in recovery_views(report)[0].rows] == ["recall@1"]


def test_a_run_to_its_end_says_its_steps_alone() -> None:
    assert "for 400 steps on" in recovery_line(record(steps=400))
