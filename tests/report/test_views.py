"""What all views must show, and must never show, whatever the report says."""

from __future__ import annotations

import re

import pytest

from megacompile.report.html import render_html
from megacompile.report.markdown import render_markdown

from . import samples
from .views import ALL, outline, terminal


@pytest.mark.parametrize("name", ALL)
def test_no_view_shows_what_is_not_a_number(name: str) -> None:
    report = ALL[name]()
    shown = " ".join(outline(report).text) + render_markdown(report) + terminal(report)
    assert not re.search(r"\b(?i:nan|inf)\b|\bNone\b", shown)
    attributes = [v for _, found in outline(report).tags for v in found.values() if v]
    assert not any(re.search(r"\bnan\b", value) for value in attributes)


def test_user_text_is_escaped_everywhere() -> None:
    report = samples.hostile_report()
    html, page = render_html(report), outline(report)
    assert "<script" not in html
    assert "<script>alert(1)</script>" in " ".join(page.text)
    markdown = render_markdown(report)
    assert "<script" not in markdown
    rows = [line for line in markdown.splitlines() if line.startswith("| ")]
    bare = [len(re.findall(r"(?<!\\)\|", row)) for row in rows[:9]]
    assert len(set(bare)) == 1, "a pipe in user text made a new column"
    assert not re.search(r"(?<!\\)`", markdown)


def test_withheld_speedups_are_said_and_none_is_shown() -> None:
    report = samples.withheld_report()
    assert "Speed-ups are withheld" in " ".join(outline(report).text)
    assert "Speed-ups are withheld" in render_markdown(report)
    assert "Speed-ups are withheld" in terminal(report)
    assert "3.04×" not in render_html(report)


def test_what_was_not_executed_is_said_and_no_latency_is_shown() -> None:
    report = samples.unexecuted_report()
    for view in (render_html(report), render_markdown(report), terminal(report)):
        assert "not executed" in view
        assert " ms" not in view
    for view in (render_html(report), render_markdown(report)):
        assert "89.engine" in view
        assert "30.7 MB" in view
