"""What a build tells while it runs: a live table, plain lines, or JSON events."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, Protocol

Mode = Literal["auto", "live", "plain", "json", "quiet"]


class Listener(Protocol):
    """Whoever is told of events."""

    def __call__(self, event: str, **data: Any) -> None: ...


class Progress:
    """Turns events into output. Events: `say` (message), `step` (candidate, step), `bar`
    (candidate, done, total, note), `finished` (candidate, status, note)."""

    def __init__(self, mode: Mode = "auto") -> None:
        if mode == "auto":
            mode = "live" if sys.stderr.isatty() else "plain"
        self.mode = mode
        self.start = time.monotonic()
        self.rows: dict[str, tuple[str, str]] = {}
        self.message = ""

    @contextmanager
    def running(self) -> Iterator[Progress]:
        """Show progress until the block ends."""
        if self.mode != "live":
            yield self
            return
        from rich.console import Console
        from rich.live import Live

        console = Console(stderr=True)
        live = Live(
            get_renderable=self._table, console=console, refresh_per_second=4, transient=True
        )
        with live:
            yield self

    def __call__(self, event: str, **data: Any) -> None:
        seconds = time.monotonic() - self.start
        if self.mode == "quiet":
            return
        if self.mode == "json":
            print(json.dumps({"event": event, "seconds": round(seconds, 3), **data}), flush=True)
            return
        line = self._line(event, data)
        if self.mode == "plain" and line:
            print(f"[{seconds:7.1f} s] {line}", file=sys.stderr, flush=True)

    def _line(self, event: str, data: dict[str, Any]) -> str:
        if event == "say":
            self.message = str(data["message"])
            return self.message
        if event == "step":
            self.rows[data["candidate"]] = ("running", str(data["step"]))
            return f"{data['candidate']}: {data['step']}"
        if event == "bar":
            done, total = int(data["done"]), int(data["total"])
            self.rows[data["candidate"]] = (f"{done} of {total}", _bar(done, total, data["note"]))
            # Lines for a log: about ten of them, and the last.
            shown = done == total or done % max(1, total // 10) == 0
            return f"{data['candidate']}: {done} of {total}, {data['note']}" if shown else ""
        if event == "finished":
            self.rows[data["candidate"]] = (str(data["status"]), str(data.get("note") or ""))
            note = f" ({data['note']})" if data.get("note") else ""
            return f"{data['candidate']}: {data['status']}{note}"
        return ""

    def _table(self) -> Any:
        from rich.table import Table

        seconds = time.monotonic() - self.start
        title = f"{self.message} · {seconds:.0f} s"
        table = Table(title=title, title_justify="left", box=None, pad_edge=False)
        for name in ("candidate", "state", ""):
            table.add_column(name, overflow="fold")
        for candidate, (state, note) in self.rows.items():
            table.add_row(candidate, state, note)
        return table


def _bar(done: int, total: int, note: str, width: int = 24) -> str:
    filled = round(width * done / max(total, 1))
    return "━" * filled + "╌" * (width - filled) + f" {note}"
