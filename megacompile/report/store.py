"""Reports on disk: `report.json` is the truth and is written last."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from megacompile.errors import MegacompileError
from megacompile.report.html import render_html
from megacompile.report.markdown import render_markdown
from megacompile.report.model import Report

JSON, HTML, MARKDOWN = "report.json", "report.html", "report.md"
KNOWN_SCHEMAS = (1,)
SHOWN_PROBLEMS = 5


class ReportError(MegacompileError):
    """A report that is missing, damaged, or of an unknown version."""


def write_report(report: Report, folder: Path) -> Path:
    """Write the report and its views into `folder`; the path of `report.json`."""
    data = report.to_json()
    _check_round_trip(data, folder / JSON)
    files = {HTML: render_html(report), MARKDOWN: render_markdown(report), JSON: data}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _publish(files, folder)
    except OSError as error:
        raise ReportError(
            "the report can't be written",
            where=str(folder),
            cause=f"{type(error).__name__}: {error.strerror or error}",
            remedy="make the folder writable, or free some space, and build again",
        ) from error
    return folder / JSON


def read_report(path: Path) -> Report:
    """The report at `path`: `report.json`, its folder, or a folder that holds just one report."""
    file = _find(path)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ReportError(
            "the report can't be read",
            where=str(file),
            cause=f"{type(error).__name__}: {error.strerror or error}",
            remedy="check the file's permissions",
        ) from error
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ReportError(
            "the report is damaged",
            where=_place(file, error),
            expected="JSON text",
            got=_shown(error),
            remedy="build again, or fetch the file again",
        ) from error
    _check_schema(data, file)
    try:
        return Report.model_validate(data)
    except ValidationError as error:
        raise ReportError(
            "the report does not have the shape of its schema",
            where=str(file),
            expected=f"a report of schema {data['schema']}",
            got=_problems(error),
            remedy="build again; a report is not meant to be edited by hand",
        ) from error


def _publish(files: dict[str, str], folder: Path) -> None:
    """All under temporary names first, so that a full disk leaves the old report whole."""
    written: dict[str, Path] = {}
    try:
        for name, text in files.items():
            written[name] = folder / f".{name}.{os.getpid()}.tmp"
            with written[name].open("w", encoding="utf-8", newline="\n") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
        for name, temporary in written.items():
            temporary.replace(folder / name)
    finally:
        for leftover in written.values():
            leftover.unlink(missing_ok=True)


def _check_round_trip(data: str, file: Path) -> None:
    """A figure that is not a number would make a report that nobody can read."""
    try:
        Report.model_validate_json(data)
    except ValidationError as error:
        raise ReportError(
            "the report can't be read back, so it was not written",
            where=str(file),
            expected="finite numbers",
            got=_problems(error),
            audience="megacompile",
            remedy="report this with the figures above",
        ) from error


def _find(path: Path) -> Path:
    if path.name in (HTML, MARKDOWN):
        return _find(path.with_name(JSON))
    if path.is_file():
        return path
    if (path / JSON).is_file():
        return path / JSON
    below = sorted(path.glob(f"*/{JSON}")) if path.is_dir() else []
    if len(below) == 1:
        return below[0]
    if below:
        names = ", ".join(file.parent.name for file in below[:SHOWN_PROBLEMS])
        raise ReportError(
            "there is more than one report",
            where=str(path),
            expected="one report",
            got=f"{len(below)} reports: {names}",
            remedy="name the report's own folder",
        )
    raise ReportError(
        "there is no report",
        where=str(path),
        expected=f"{JSON}, its folder, or a folder with one report in it",
        got="an empty or other folder" if path.is_dir() else "nothing there",
        remedy="run megacompile build first, or correct the path",
    )


def _check_schema(data: Any, file: Path) -> None:
    if not isinstance(data, dict):
        raise ReportError(
            "the report is damaged",
            where=str(file),
            expected="a JSON object",
            got=f"a JSON {type(data).__name__}",
            remedy="build again",
        )
    number = data.get("schema")
    if isinstance(number, bool) or number not in KNOWN_SCHEMAS:
        known = ", ".join(map(str, KNOWN_SCHEMAS))
        raise ReportError(
            "the report's schema is unknown",
            where=f"{file}: schema",
            expected=f"one of the known versions: {known}",
            got="no schema number" if number is None else repr(number)[:80],
            remedy="install the megacompile that wrote it, or build again with this one",
        )


def _place(file: Path, error: UnicodeDecodeError | json.JSONDecodeError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{file}:{error.lineno}:{error.colno}"
    return f"{file}: byte {error.start}"


def _shown(error: UnicodeDecodeError | json.JSONDecodeError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return "an empty file" if not error.doc.strip() else error.msg
    return error.reason


def _problems(error: ValidationError) -> str:
    problems = error.errors(include_url=False, include_input=False)
    shown = [(".".join(map(str, one["loc"])), one["msg"]) for one in problems[:SHOWN_PROBLEMS]]
    lines = [f"{place}: {message}" for place, message in shown]
    rest = len(problems) - len(lines)
    return "; ".join(lines) + (f"; and {rest} more" if rest > 0 else "")
