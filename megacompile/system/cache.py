"""A content-addressed store: what a key names is there whole, or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from megacompile.errors import MegacompileError

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
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class Entry:
    """A stored folder with its record. `intact` re-hashes its files."""

    folder: Path
    record: dict[str, Any]
    files: dict[str, str]

    def intact(self) -> bool:
        try:
            return all(file_sha256(self.folder / n) == h for n, h in self.files.items())
        except OSError:
            return False


class Cache:
    """Folders by key. Entries are written under a temporary name and renamed when complete."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
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
            names = sorted(
                str(p.relative_to(temporary)) for p in temporary.rglob("*") if p.is_file()
            )
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
        for folder in (self.root / "writing").glob("*-*"):
            owner = folder.name.split("-")[0]
            if owner.isdigit() and not Path(f"/proc/{owner}").exists():
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


def disk_error(error: OSError, where: Path) -> MegacompileError:
    """A failed write in words: a full disk, a folder without permission."""
    # shutil's copies collect several errors as text, without a number.
    full = error.errno == errno.ENOSPC or os.strerror(errno.ENOSPC) in str(error)
    return MegacompileError(
        what="writing failed" + (": the disk is full" if full else ""),
        where=str(error.filename or where),
        cause=os.strerror(errno.ENOSPC) if full else error.strerror or str(error),
        remedy="free some space (`megacompile cache --prune 1GB`) or set MEGACOMPILE_CACHE to a "
        "larger disk, and run the same command again: finished steps are kept",
    )


def python_sources(path: Path) -> list[Path]:
    """A Python file and the files beside it that it imports, directly or through each other."""
    import ast

    found: list[Path] = []
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.append(file)
        try:
            tree = ast.parse(file.read_bytes())
        except (SyntaxError, ValueError):
            continue
        for node in ast.walk(tree):
            names: Iterable[str] = ()
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            waiting += [file.parent / (name.split(".")[0] + ".py") for name in names]
    return found


def sources_hash(path: Path) -> str:
    """A hash of a Python file and its siblings that it imports."""
    digest = hashlib.sha256()
    for file in sorted(python_sources(path)):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
