"""Names of passes and backends: the tables, those of other distributions, and their faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from megacompile.errors import MegacompileError, PassError, SpecError
from megacompile.plan import registry
from megacompile.plan.backends import Backend
from megacompile.plan.declarations import consumes, produces

ROOT = Path(__file__).resolve().parents[2]

PROBE = """
from megacompile.plan import registry
from megacompile.errors import MegacompileError
from pathlib import Path
try:
    registry.pass_table()
    print(registry.pass_classes("theirs", Path())[0].__name__)
except MegacompileError as error:
    print(error)
"""
THEIRS = """
from typing import ClassVar
from megacompile import Eager, Effect, Fact, Pass, PassContext, PassResult

PASSES = {"NAME": "their_passes:Theirs"}

class Theirs(Pass[Eager, Eager]):
    name: ClassVar[str] = "theirs"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    def run(self, model: Eager, ctx: PassContext) -> PassResult[Eager]:
        raise NotImplementedError
"""


@pytest.fixture
def distribution(tmp_path: Path) -> Callable[..., str]:
    """Install a table that registers one name, and say what the registry says of it."""

    def probe(name: str, table: str = "their_passes:PASSES") -> str:
        info = tmp_path / "their_passes-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-passes\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[megacompile.passes]\ntheirs = {table}\n")
        (tmp_path / "their_passes.py").write_text(THEIRS.replace("NAME", name))
        environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", PROBE],
            env=environment,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    return probe


def test_a_package_registers_passes_through_one_table(distribution: Callable[..., str]) -> None:
    assert distribution("theirs") == "Theirs\n"


def test_a_name_with_two_owners_names_both(distribution: Callable[..., str]) -> None:
    said = distribution("quantize")
    assert "two owners of the name 'quantize'" in said
    assert "'their-passes'" in said
    assert "'megacompile'" in said


@pytest.mark.parametrize(
    ("table", "message"),
    [("their_passes:Theirs", "is no table"), ("their_passes:Nothing", "can't be loaded")],
)
def test_a_table_that_is_none(table: str, message: str, distribution: Callable[..., str]) -> None:
    said = distribution("theirs", table)
    assert message in said
    assert "their-passes" in said


def test_every_name_leads_to_classes_of_that_name() -> None:
    for name in registry.pass_table():
        classes = registry.pass_classes(name, Path())
        assert classes
        assert {cls.name for cls in classes} == {name}
    for name in registry.backend_table():
        assert registry.backend_class(name).name == name


def test_a_pass_may_be_a_file_beside_the_spec() -> None:
    (found,) = registry.pass_classes("my_passes.py:FuseConvBatchNorm", ROOT / "specs")
    assert (found.name, consumes(found)) == ("fuse-conv-batchnorm", "Eager")
    with pytest.raises(PassError, match="not a pass"):
        registry.pass_classes("my_passes.py:Field", ROOT / "specs")


def test_unknown_names_are_met_with_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"unknown pass 'quantise'\n.*'quantize'"):
        registry.pass_classes("quantise", Path())
    with pytest.raises(SpecError, match=r"unknown backend 'onnxruntim'\n.*'onnxruntime'"):
        registry.backend_class("onnxruntim")


@pytest.mark.parametrize("reference", ["json:loads", "json:nothing", "no_such_module:Engine"])
def test_a_backend_that_is_none_is_its_authors_fault(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "backend_table", lambda: {"mine": (reference,)})
    with pytest.raises(MegacompileError, match=reference) as caught:
        registry.backend_class("mine")
    assert caught.value.audience == "pass author"


def test_conversions_turn_one_form_into_another_without_options() -> None:
    found = registry.conversions()
    assert {"export", "to-onnx", "script"} <= {cls.name for cls in found}
    for cls in found:
        assert consumes(cls) != produces(cls)
        cls()
    assert not any(issubclass(cls, Backend) for cls in found)
