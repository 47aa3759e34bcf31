"""A user's Python as what a step depends on."""

from __future__ import annotations

from pathlib import Path

from megacompile.system.sources import python_sources, sources_hash


def test_sources_with_siblings(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("import b\nimport json\n")
    (tmp_path / "b.py").write_text("from c import x\nimport a\n")
    (tmp_path / "c.py").write_text("x = 1\n")
    (tmp_path / "d.py").write_text("unused")
    assert {p.name for p in python_sources(tmp_path / "a.py")} == {"a.py", "b.py", "c.py"}
    before = sources_hash(tmp_path / "a.py")
    (tmp_path / "d.py").write_text("changed")
    assert sources_hash(tmp_path / "a.py") == before
    (tmp_path / "c.py").write_text("x = 2\n")
    assert sources_hash(tmp_path / "a.py") != before


def test_a_file_that_does_not_parse_is_hashed_too(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("import b\nx = (\n")
    (tmp_path / "b.py").write_text("")
    assert python_sources(path) == [path]
    before = sources_hash(path)
    path.write_text("import b\nx = [\n")
    assert sources_hash(path) != before


def test_a_package_beside_it_is_read_by_its_first_name(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("from b.c import x\nfrom . import d\n")
    (tmp_path / "b.py").write_text("")
    (tmp_path / "d.py").write_text("")
    assert {p.name for p in python_sources(tmp_path / "a.py")} == {"a.py", "b.py"}
