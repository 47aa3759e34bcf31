"""Reports on disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from megacompile.report.store import ReportError, read_report, write_report

from . import samples


def test_written_report_is_read_back_by_every_path(tmp_path: Path) -> None:
    report = samples.sample_report()
    folder = tmp_path / "reports" / "minilm"
    assert write_report(report, folder) == folder / "report.json"
    assert sorted(one.name for one in folder.iterdir()) == [
        "report.html",
        "report.json",
        "report.md",
    ]
    for path in (folder / "report.json", folder / "report.html", folder, folder.parent):
        assert read_report(path) == report


def test_interrupted_write_leaves_the_old_report_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_report(samples.sample_report(), tmp_path)
    before = {one.name: one.read_bytes() for one in tmp_path.iterdir()}

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("megacompile.report.store.os.fsync", full)
    with pytest.raises(ReportError, match="No space left"):
        write_report(samples.later_report(), tmp_path)
    assert {one.name: one.read_bytes() for one in tmp_path.iterdir()} == before


def test_report_that_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="finite numbers"):
        write_report(samples.broken_numbers_report(), tmp_path)
    assert not list(tmp_path.iterdir())


def test_missing_report(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(ReportError, match="there is no report") as caught:
            read_report(path)
        assert caught.value.where
        assert caught.value.remedy


def test_several_reports_are_named(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(samples.plain_report(), tmp_path / name)
    with pytest.raises(ReportError, match="2 reports: a, b"):
        read_report(tmp_path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "an empty file"),
        (b'{"schema": 1,', "damaged"),
        (b"\xff\xfe\x00", "byte 0"),
        (b"[]", "a JSON list"),
        (b'{"schema": 1}', "name: Field required"),
        (b'{"schema": 7}', "known versions: 1"),
        (b'{"name": "x"}', "no schema number"),
    ],
)
def test_damaged_report_says_where_and_what(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "report.json"
    file.write_bytes(content)
    with pytest.raises(ReportError) as caught:
        read_report(file)
    text = str(caught.value)
    assert words in text
    assert str(file) in text
    assert caught.value.expected
    assert caught.value.got
    assert caught.value.remedy


def test_unknown_key_is_named(tmp_path: Path) -> None:
    data = json.loads(samples.plain_report().to_json())
    data["candidates"][0]["speed"] = 3
    (tmp_path / "report.json").write_text(json.dumps(data))
    with pytest.raises(ReportError, match=r"candidates\.0\.speed"):
        read_report(tmp_path)
