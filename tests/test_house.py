"""The rules of the house that no linter knows: doors between rooms, files of one thing, the mirror
of the tests, and a picture that is not stale."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ENGINE, LIBRARY = ROOT / "megacompile", ROOT / "passes" / "megacompile_passes"
ROOMS = sorted(p.parent.name for p in ENGINE.glob("*/__init__.py"))
FILES = sorted([*ENGINE.rglob("*.py"), *LIBRARY.rglob("*.py")])
HEAVY = {"torch", "onnx"}
LIMIT = 400
# Tests of what no single file does: whole builds, hardware, servers, a page as a browser shows it.
UNMIRRORED = {
    "builder/test_bad_input.py",
    "builder/test_bad_training_input.py",
    "builder/test_recovery.py",
    "builder/test_robustness.py",
    "builder/test_training_bundle.py",
    "builder/test_training_promises.py",
    "deploy/triton/test_server.py",
    "engines/tensorrt/test_cross_build.py",
    "engines/test_cuda.py",
    "passes/structure/share_parameters/test_in_engines.py",
    "report/test_browser.py",
    "report/test_style.py",
    "report/test_views.py",
    "training/test_cuda.py",
    "training/test_loops.py",
}


def module_of(path: Path) -> str:
    """The dotted name of a file of the engine or of the library."""
    top = ENGINE.parent if path.is_relative_to(ENGINE) else LIBRARY.parent
    return ".".join(path.relative_to(top).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "megacompile" and len(parts) > 1 and parts[1] in ROOMS else None


def imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """(module, name) of every `from module import name`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def paths() -> dict[str, Path]:
    return {module_of(path): path for path in FILES}


@cache
def is_heavy(module: str) -> bool:
    """Whether importing a file loads torch or onnx, at its top or through what it imports there."""
    for node in tree_of(paths()[module]).body:
        if isinstance(node, ast.Import) and HEAVY & {a.name.split(".")[0] for a in node.names}:
            return True
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        if node.module.split(".")[0] in HEAVY:
            return True
        inner = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in (node.module, *inner):
            # A package that the file lies in is on its way already.
            if name in paths() and not f"{module}.".startswith(f"{name}.") and is_heavy(name):
                return True
    return False


def crossings() -> Iterator[tuple[str, str, str]]:
    """(importing module, imported module, name) of every import into another room."""
    for path in FILES:
        mine = module_of(path)
        for module, name in imports(tree_of(path)):
            theirs = room_of(module)
            if theirs is not None and theirs != room_of(mine):
                yield mine, module, name


def test_other_rooms_come_through_the_door() -> None:
    """`from megacompile.plan import Pass`, unless the file loads torch or onnx."""
    wrong = []
    for mine, module, name in crossings():
        target = module if module.count(".") > 1 else f"{module}.{name}"
        if target in paths() and module.count(".") > 1 and not is_heavy(target):
            wrong.append(f"{mine}: from {module} import {name}")
    # The root's names are imported when they are used, and for type checkers.
    assert [line for line in wrong if not line.startswith("megacompile:")] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_door_is_light_and_exports_what_others_use(room: str) -> None:
    door = f"megacompile.{room}"
    assert not is_heavy(door)
    exported = {name for module, name in imports(tree_of(paths()[door])) if room_of(module) == room}
    used = {name for _, module, name in crossings() if module == door}
    assert exported - used - ({"main"} if room == "commands" else set()) == set()


@pytest.mark.parametrize("path", FILES, ids=module_of)
def test_a_file_does_one_thing(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LIMIT
    assert ast.get_docstring(tree_of(path)), "what is it for?"


def test_the_formatter_decides() -> None:
    marks = [
        path.name
        for folder in ("megacompile", "passes", "tests", "specs", "benchmarks", ".ci")
        for path in (ROOT / folder).rglob("*.py")
        if "# fmt: " + "skip" in path.read_text(encoding="utf-8")
    ]
    assert marks == []


def test_tests_stand_where_their_subject_does() -> None:
    strays = []
    for path in (ROOT / "tests").rglob("test_*.py"):
        place = path.relative_to(ROOT / "tests")
        room = place.parts[0]
        if room not in ROOMS and room != "passes":
            continue  # whole specs, field cases, the house itself
        base = LIBRARY.joinpath(*place.parts[1:-1]) if room == "passes" else ENGINE / place.parent
        subject = base / path.stem.removeprefix("test_")
        if not (subject.with_suffix(".py").is_file() or (subject / "__init__.py").is_file()):
            strays.append(str(place))
    assert sorted(strays) == sorted(UNMIRRORED)


def test_the_picture_is_not_stale() -> None:
    command = [sys.executable, str(ROOT / ".ci" / "house.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
