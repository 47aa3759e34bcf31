"""The page of a pull request: golden, and short."""

from __future__ import annotations

import pytest

from megacompile.report.markdown import details, render_markdown, table, text

from . import samples
from .views import FACTORIES, Golden


@pytest.mark.parametrize("name", FACTORIES)
def test_markdown_is_golden(name: str, golden: Golden) -> None:
    golden(f"{name}.md", render_markdown(FACTORIES[name]()))


def test_markdown_fits_a_pull_request() -> None:
    assert len(render_markdown(samples.sample_report()).splitlines()) < 60


def test_user_text_stays_on_one_line_and_means_nothing() -> None:
    assert text("a\n  b\tc") == "a b c"
    assert text("*a* <b> `c` | d & https://e") == (
        r"\*a\* &lt;b&gt; \`c\` \| d &amp; https:&#47;&#47;e"
    )
    assert len(text("x" * 500)) == 240


def test_figures_are_aligned_to_the_right() -> None:
    assert table(["name", "size"], [["a", "1"]], 1) == [
        "| name | size |",
        "| --- | ---: |",
        "| a | 1 |",
    ]


def test_a_folded_part_keeps_the_lines_that_markdown_needs() -> None:
    assert details("More", ["- one"]) == [
        "<details><summary>More</summary>",
        "",
        "- one",
        "",
        "</details>",
    ]
