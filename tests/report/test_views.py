"""The views against their golden files, and what they must show whatever the report says."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from html.parser import HTMLParser

import pytest
from rich.console import Console

from megacompile.report.html import render_html
from megacompile.report.markdown import render_markdown
from megacompile.report.model import Report
from megacompile.report.summary import metric_change, ordered
from megacompile.report.svg import fitted, tick_texts
from megacompile.report.terminal import render_terminal

from . import samples, training_samples

Golden = Callable[[str, str], None]
FACTORIES = {
    "usual": samples.sample_report,
    "withheld": samples.withheld_report,
    "no_improvement": samples.no_improvement_report,
    "failed": samples.failed_report,
    "unexecuted": samples.unexecuted_report,
    "plain": samples.plain_report,
    "training": training_samples.training_report,
}
ALL = FACTORIES | {
    "large": samples.large_report,
    "hostile": samples.hostile_report,
    "broken_numbers": samples.broken_numbers_report,
}
VOID = {"meta", "br", "link", "img", "hr", "input"}


def terminal(report: Report, width: int = 80) -> str:
    stream = io.StringIO()
    Console(file=stream, width=width).print(render_terminal(report))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


class Outline(HTMLParser):
    """The tags, attributes and visible text of a page; unbalanced tags are an error."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.text.append(data)


def outline(report: Report) -> Outline:
    found = Outline()
    found.feed(render_html(report))
    found.close()
    assert found.open == []
    return found


@pytest.mark.parametrize("name", FACTORIES)
def test_html_is_golden(name: str, golden: Golden) -> None:
    golden(f"{name}.html", render_html(FACTORIES[name]()))


@pytest.mark.parametrize("name", FACTORIES)
def test_markdown_is_golden(name: str, golden: Golden) -> None:
    golden(f"{name}.md", render_markdown(FACTORIES[name]()))


@pytest.mark.parametrize("name", FACTORIES)
def test_terminal_is_golden(name: str, golden: Golden) -> None:
    golden(f"{name}.txt", terminal(FACTORIES[name]()))


@pytest.mark.parametrize("name", ALL)
def test_no_view_shows_what_is_not_a_number(name: str) -> None:
    report = ALL[name]()
    shown = " ".join(outline(report).text) + render_markdown(report) + terminal(report)
    assert not re.search(r"\b(?i:nan|inf)\b|\bNone\b", shown)
    attributes = [v for _, found in outline(report).tags for v in found.values() if v]
    assert not any(re.search(r"\bnan\b", value) for value in attributes)


@pytest.mark.parametrize("name", ALL)
def test_page_fetches_nothing_and_runs_nothing(name: str) -> None:
    page = outline(ALL[name]())
    assert {"script", "link", "img", "iframe", "object"}.isdisjoint(tag for tag, _ in page.tags)
    for _, attributes in page.tags:
        assert not {"src", "href", "xlink:href", "style:"} & attributes.keys()
        assert not [key for key in attributes if key.startswith("on")]
    style = re.findall(r"<style>(.*?)</style>", render_html(ALL[name]()), re.DOTALL)
    assert not re.search(r"url\(|@import|https?:", " ".join(style))


@pytest.mark.parametrize("name", ALL)
def test_every_drawing_says_what_it_is(name: str) -> None:
    html = render_html(ALL[name]())
    assert len(re.findall(r'<svg role="img"', html)) == len(re.findall(r"<title>", html)) - 1
    assert html.count("<desc>") == html.count('<svg role="img"')


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


def test_markdown_fits_a_pull_request() -> None:
    assert len(render_markdown(samples.sample_report()).splitlines()) < 60


def test_terminal_fits_eighty_columns() -> None:
    for factory in ALL.values():
        assert max(len(line) for line in terminal(factory()).splitlines()) <= 80


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


def test_long_lists_are_capped() -> None:
    html = render_html(samples.large_report())
    assert "and 5,960 more steps" in html
    assert "and 24 more reasons" in html
    assert "graph.node_5999" not in html
    assert len(html) < 400_000


def test_every_candidate_that_did_not_win_says_why_and_what_to_do() -> None:
    report = samples.sample_report()
    words = " ".join(outline(report).text)
    for candidate in report.candidates:
        if candidate.status != "built":
            assert candidate.reason
            assert candidate.reason in words
            assert candidate.remedy is not None
            assert candidate.remedy in words


def test_slower_candidates_say_by_how_much() -> None:
    words = " ".join(outline(samples.sample_report()).text)
    assert "17.9 ms at the first point, 1.75× the winner's 10.2 ms" in words
    words = " ".join(outline(samples.no_improvement_report()).text)
    assert "Why none of them won" in words
    assert "not significantly faster than eager" in words


def test_winner_comes_first_and_then_the_fast_ones() -> None:
    names = [candidate.name for candidate in ordered(samples.sample_report())]
    assert names[:3] == ["int8/openvino", "bf16/aotinductor", "fp32/onnxruntime"]
    assert names[3:] == ["int8/aotinductor", "fp16/tensorrt"]


def test_metric_change_is_judged_by_its_sampling_error() -> None:
    before, after = samples.metric(0.31)["recall@1"], samples.metric(0.30)["recall@1"]
    assert not metric_change("recall@1", before, after).significant
    after.value = 0.25
    change = metric_change("recall@1", before, after)
    assert change.significant
    assert not change.better
    after.standard_error = None
    assert not metric_change("recall@1", before, after).significant


@pytest.mark.parametrize(
    "values", [[31.0], [0.0], [1.0, 1.0], [0.4, 3.1], [10.0, 220.0], [0.01, 5000.0], [1e-9, 3e-9]]
)
def test_scales_have_few_ticks_inside(values: list[float]) -> None:
    scale = fitted(values)
    assert len(scale.ticks()) <= 7
    assert len(tick_texts(scale)) == len(scale.ticks())
    assert all(0 <= scale.at(value) <= 100 for value in [*values, *scale.ticks()])
