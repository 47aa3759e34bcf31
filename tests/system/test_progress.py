"""What a build tells while it runs: plain lines, JSON events, a live table, nothing."""

from __future__ import annotations

import io
import json
import re

import pytest
from rich.console import Console

from megacompile.system.progress import Progress

Capture = pytest.CaptureFixture[str]


def tell(progress: Progress) -> None:
    """A short build."""
    with progress.running():
        progress("say", message="building 1 candidate")
        progress("step", candidate="int8/openvino", step="quantize")
        for done in range(1, 41):
            progress("bar", candidate="int8/openvino", done=done, total=40, note=f"loss {done}")
        progress("finished", candidate="int8/openvino", status="failed", note="no room")
        progress("finished", candidate="fp32/openvino", status="built")


def test_plain_lines_go_to_stderr_with_their_time(capsys: Capture) -> None:
    tell(Progress("plain"))
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert all(re.match(r"\[ *\d+\.\d s\] ", line) for line in lines)
    texts = [line.partition("] ")[2] for line in lines]
    assert texts[:2] == ["building 1 candidate", "int8/openvino: quantize"]
    assert texts[-2:] == ["int8/openvino: failed (no room)", "fp32/openvino: built"]
    assert texts[2:-2] == [f"int8/openvino: {n} of 40, loss {n}" for n in range(4, 41, 4)]


def test_the_last_of_a_bar_is_always_a_line(capsys: Capture) -> None:
    progress = Progress("plain")
    for done in (1, 24, 25):
        progress("bar", candidate="a", done=done, total=25, note="")
    assert re.findall(r"a: (\d+) of 25", capsys.readouterr().err) == ["24", "25"]


def test_json_has_every_event_as_it_came(capsys: Capture) -> None:
    tell(Progress("json"))
    out, err = capsys.readouterr()
    assert err == ""
    events = [json.loads(line) for line in out.splitlines()]
    seconds = [event.pop("seconds") for event in events]
    assert seconds == sorted(seconds)
    assert len(events) == 44
    assert events[0] == {"event": "say", "message": "building 1 candidate"}
    bar = {"candidate": "int8/openvino", "done": 1, "total": 40, "note": "loss 1"}
    assert events[2] == {"event": "bar", **bar}
    assert events[-1] == {"event": "finished", "candidate": "fp32/openvino", "status": "built"}


def test_quiet_tells_nothing(capsys: Capture) -> None:
    tell(Progress("quiet"))
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("terminal", "mode"), [(True, "live"), (False, "plain")])
def test_auto_is_live_on_a_terminal_alone(
    terminal: bool, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr("sys.stderr", stream)
    assert Progress().mode == mode


def test_the_live_table_has_a_row_for_each_candidate() -> None:
    progress = Progress("live")
    tell(progress)
    progress("bar", candidate="fp32/openvino", done=1, total=4, note="loss 0.5")
    stream = io.StringIO()
    Console(file=stream, width=100).print(progress._table())
    title, *rows = [line.split() for line in stream.getvalue().splitlines()]
    assert title[:3] == ["building", "1", "candidate"]
    assert rows[1] == ["int8/openvino", "failed", "no", "room"]
    assert rows[2] == ["fp32/openvino", "1", "of", "4", "━" * 6 + "╌" * 18, "loss", "0.5"]


def test_an_unknown_event_is_no_line(capsys: Capture) -> None:
    Progress("plain")("weather", candidate="a")
    assert capsys.readouterr() == ("", "")
