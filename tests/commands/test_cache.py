"""`megacompile cache` shows, prunes and clears the store."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.commands.cache import _bytes
from megacompile.system.cache import Cache
from tests.commands.shell import ended


def test_sizes_to_keep(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = ended(["cache", "--prune", "1.5GB"], capsys)
    assert code == 0
    assert "removed 0 entries" in out
    code, _, err = ended(["cache", "--prune", "much"], capsys)
    assert code == 2
    assert "is no size" in err


def test_entries_are_counted_pruned_and_cleared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Cache(tmp_path / "cache")
    for name in ("aa", "bb"):
        store.put(name, {}, lambda folder: (folder / "file").write_bytes(b"x" * 1_000_000) and None)
    assert ": 2 entries, 2.0 MB" in ended(["cache"], capsys)[1]
    out = ended(["cache", "--prune", "1.5MB"], capsys)[1]
    assert "removed 1 entries, 1.0 MB" in out
    assert ": 1 entries, 1.0 MB" in out
    assert ended(["cache", "--clear"], capsys)[1] == f"cleared: {store.root}\n"
    assert ": 0 entries, 0.0 MB" in ended(["cache"], capsys)[1]


@pytest.mark.parametrize(
    ("text", "size"), [("5GB", 5e9), ("5G", 5e9), ("500 MB", 5e8), ("1KiB", 1024), ("7", 7)]
)
def test_sizes_are_read(text: str, size: float) -> None:
    assert _bytes(text) == size
