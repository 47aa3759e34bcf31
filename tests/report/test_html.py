"""The page: golden, whole by itself, and with words for all that it draws."""

from __future__ import annotations

import re

import pytest

from megacompile.report.html import render_html

from . import samples
from .views import ALL, FACTORIES, Golden, outline


@pytest.mark.parametrize("name", FACTORIES)
def test_html_is_golden(name: str, golden: Golden) -> None:
    golden(f"{name}.html", render_html(FACTORIES[name]()))


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
