"""Every sample report, and what its views show."""

from __future__ import annotations

import io
from collections.abc import Callable
from html.parser import HTMLParser

from rich.console import Console

from megacompile.report.html import render_html
from megacompile.report.model import Report
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
