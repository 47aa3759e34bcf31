"""A content-addressed store: what a key names is there whole, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from megacompile.system.disk import disk_error

INDEX = "entry.json"


def default_root() -> Path:
    """`MEGACOMPILE_CACHE`, or `megacompile` where this system keeps a user's caches."""
    given = os.environ.get("MEGACOMPILE_CACHE")
    return Path(given) if given else user_cache_path("megacompile", appauthor=False)


def key_of(*parts: Any) -> str:
    """A key from plain data."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def file_sha256(path: Path) -> str:
    """A hash of a file's bytes."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class Entry:
    """A stored folder with its record, and the hash of each of its files."""

    folder: Path
    record: dict[str, Any]
    files: dict[str, str]

    def intact(self) -> bool:
        """Whether all files hold what was stored."""
        try:
            return all(file_sha256(self.folder / n) == h for n, h in self.files.items())
        except OSError:
            return False


class Cache:
    """Folders by key. Entries are written under a temporary name and renamed when complete."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        """Where an entry stands, or would stand."""
        return self.root / "entries" / key[:2] / key

    def get(self, key: str, check: bool = False) -> Entry | None:
        """The entry, or None if it is not there or damaged; a damaged one is removed.

        Sizes are always compared; `check` re-hashes the files too.
        """
        folder = self.folder(key)
        try:
            data = json.loads((folder / INDEX).read_text())
            sizes = {name: (folder / name).stat().st_size for name in data["files"]}
            entry = Entry(folder, data["record"], data["files"])
            whole = sizes == data["sizes"]
        except (OSError, ValueError, KeyError, TypeError):
            # A folder without its index is no entry either: it would stand in the way of one.
            if not folder.exists():
                return None
            whole = False
        if whole and (not check or entry.intact()):
            with contextlib.suppress(OSError):
                os.utime(folder / INDEX)  # the time of last use, for pruning
            return entry
        shutil.rmtree(folder, ignore_errors=True)
        return None

    def put(self, key: str, record: dict[str, Any], write: Callable[[Path], None]) -> Entry:
        """Store what `write` puts into an empty folder. If another process was first, its entry
        stands.

        Raises:
            MegacompileError: the disk is full or the folder can't be written.
        """
        target = self.folder(key)
        temporary = self.root / "writing" / f"{os.getpid()}-{uuid.uuid4().hex}"
        try:
            temporary.mkdir(parents=True)
            write(temporary)
            written = [path for path in temporary.rglob("*") if path.is_file()]
            names = sorted(str(path.relative_to(temporary)) for path in written)
            files = {name: file_sha256(temporary / name) for name in names}
            sizes = {name: (temporary / name).stat().st_size for name in names}
            index = {"record": record, "files": files, "sizes": sizes}
            (temporary / INDEX).write_text(json.dumps(index))
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.rename(temporary, target)
            except OSError:
                if not target.is_dir():
                    raise
            return Entry(target, record, files)
        except OSError as error:
            raise disk_error(error, self.root) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    def remove_leftovers(self) -> None:
        """Remove half-written folders of processes that are gone."""
        import psutil

        for folder in (self.root / "writing").glob("*-*"):
            owner = folder.name.split("-")[0]
            if owner.isdigit() and not psutil.pid_exists(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)

    def entries(self) -> list[tuple[Path, int, float]]:
        """All entries with their bytes and time of last use, oldest first."""
        found = []
        for index in (self.root / "entries").glob("*/*/" + INDEX):
            with contextlib.suppress(OSError, ValueError):
                data = json.loads(index.read_text())
                found.append((index.parent, sum(data["sizes"].values()), index.stat().st_mtime))
        return sorted(found, key=lambda item: item[2])

    def prune(self, keep_bytes: int) -> tuple[int, int]:
        """Remove the entries unused for longest until at most `keep_bytes` are left.

        Returns how many entries and bytes were removed.
        """
        entries = self.entries()
        total, removed, freed = sum(size for _, size, _ in entries), 0, 0
        for folder, size, _ in entries:
            if total - freed <= keep_bytes:
                break
            shutil.rmtree(folder, ignore_errors=True)
            removed, freed = removed + 1, freed + size
        return removed, freed
