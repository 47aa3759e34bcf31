"""What the keys of stored steps and engines depend on, and what they don't."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from megacompile.builder import keys
from megacompile.builder.keys import engine_key, keys_of, library_of, own_hash, root_key, step_key
from megacompile.engines.loading import here
from megacompile.engines.onnxruntime import ONNXRuntime
from megacompile.engines.tensorrt.backend import TensorRT
from megacompile.measure.original import Original
from megacompile.plan.planner import make_plan
from megacompile.spec import load_spec_data
from megacompile.system import hooks

ORIGINAL = Original("Eager", "model.py:build", "abc", 10, 40, ["y"], {}, ["float32"], [])
PASS = """
from typing import ClassVar
from megacompile import Effect, Fact, Onnx, Pass, PassContext, PassResult, Sites

class Same(Pass[Onnx, Onnx]):
    name: ClassVar[str] = "same"
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    value: int = 0

    def run(self, model: Onnx, ctx: PassContext) -> PassResult[Onnx]:
        return PassResult(model, Sites("node", 1, 1))
"""
HELPER = "FACTOR = 2\n"


@pytest.fixture(autouse=True)
def files_are_read_again() -> Iterator[None]:
    """Hashes are remembered for a process; here files change under it."""
    forget()
    yield
    forget()


def forget() -> None:
    keys.own_hash.cache_clear()
    keys.sources_below.cache_clear()


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that libraries are imported from, and forgotten again."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def key(pass_: Any, base: Path, evaluation: str | None = None) -> str:
    forget()
    return step_key("before", pass_, ORIGINAL, base, evaluation)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A house of our own with something in every room that decides what a stored step is worth,
    and in one that doesn't."""
    folder = tmp_path / "house"
    for name in keys.OWN:
        write(folder, {name if name.endswith(".py") else f"{name}/deep/file.py": "A = 1\n"})
    write(folder, {"report/html.py": "A = 1\n", "measure/rounds.py": "A = 1\n"})
    monkeypatch.setattr(keys, "HOUSE", folder)
    return folder


def test_our_own_code_that_counts_is_there() -> None:
    """A file that was moved or parted must be named anew."""
    for name in keys.OWN:
        path = keys.HOUSE / name
        assert path.is_file() if name.endswith(".py") else list(path.rglob("*.py")), name
    assert len(own_hash()) == 40


@pytest.mark.parametrize("name", ["report/html.py", "measure/rounds.py"])
def test_another_room_does_not_matter(house: Path, name: str) -> None:
    before = own_hash()
    write(house, {name: "A = 2\n"})
    forget()
    assert own_hash() == before


@pytest.mark.parametrize("name", keys.OWN)
def test_every_part_of_our_own_code_that_counts_matters(house: Path, name: str) -> None:
    before = own_hash()
    write(house, {name if name.endswith(".py") else f"{name}/deep/file.py": "A = 2\n"})
    forget()
    assert own_hash() != before


def test_a_file_that_is_renamed_or_gone_is_noticed(house: Path) -> None:
    before = own_hash()
    (house / "models/deep/file.py").rename(house / "models/deep/other.py")
    forget()
    assert own_hash() != before
    (house / "plan/passes.py").unlink()
    forget()
    with pytest.raises(FileNotFoundError):
        own_hash()


@pytest.mark.parametrize(
    "changed",
    ["lib_a/graph/same.py", "lib_a/__init__.py", "lib_a/tools/deep/helper.py"],
)
def test_any_file_of_a_pass_library_matters(imported: Path, changed: str) -> None:
    files = {
        "lib_a/__init__.py": "",
        "lib_a/graph/__init__.py": "",
        "lib_a/graph/same.py": PASS,
        "lib_a/tools/deep/helper.py": HELPER,
        "lib_b/__init__.py": "",
    }
    write(imported, files)
    from lib_a.graph.same import Same  # type: ignore[import-not-found]

    assert library_of(Same) == imported / "lib_a"
    before = key(Same(), imported)
    assert key(Same(), imported) == before
    write(imported, {"lib_b/__init__.py": "A = 1\n", "beside.py": "A = 1\n"})
    assert key(Same(), imported) == before, "another library"
    write(imported, {changed: files[changed] + "# changed\n"})
    assert key(Same(), imported) != before


def test_a_library_whose_pass_lies_in_its_init(imported: Path) -> None:
    write(imported, {"lib_c/__init__.py": PASS, "lib_c/helper.py": HELPER})
    from lib_c import Same  # type: ignore[import-not-found]

    assert library_of(Same) == imported / "lib_c"


def test_a_library_of_one_module_is_that_file(imported: Path) -> None:
    write(imported, {"lib_d.py": PASS, "beside.py": HELPER})
    from lib_d import Same  # type: ignore[import-not-found]

    assert library_of(Same) == imported / "lib_d.py"
    before = key(Same(), imported)
    write(imported, {"beside.py": "FACTOR = 3\n"})
    assert key(Same(), imported) == before
    write(imported, {"lib_d.py": PASS + "# changed\n"})
    assert key(Same(), imported) != before


def test_a_pass_of_the_users_own_is_its_file_and_what_that_imports(imported: Path) -> None:
    write(imported, {"own.py": "import helper\n" + PASS, "helper.py": HELPER, "other.py": HELPER})
    cls = hooks.load("own.py:Same", imported)
    before = key(cls(), imported)
    write(imported, {"other.py": "FACTOR = 3\n"})
    assert key(cls(), imported) == before
    write(imported, {"helper.py": "FACTOR = 3\n"})
    changed = key(cls(), imported)
    assert changed != before
    write(imported, {"own.py": "import helper\n" + PASS + "# changed\n"})
    assert key(cls(), imported) not in (before, changed)


def test_options_data_and_what_came_before_matter(imported: Path) -> None:
    write(imported, {"own.py": PASS})
    cls = hooks.load("own.py:Same", imported)
    found = {
        step_key("before", cls(), ORIGINAL, imported),
        step_key("other", cls(), ORIGINAL, imported),
        step_key("before", cls(value=1), ORIGINAL, imported),
        *(
            step_key("before", cls(), dataclasses.replace(ORIGINAL, **{name: "x"}), imported)
            for name in ("calibration_hash", "training_hash")
        ),
    }
    assert len(found) == 5


def test_the_evaluation_matters_to_passes_that_use_it(
    imported: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(imported, {"own.py": PASS, "data.py": "def evaluate(run): ...\n"})
    cls = hooks.load("own.py:Same", imported)
    hook = "data.py:evaluate"
    assert key(cls(), imported, hook) == key(cls(), imported)
    monkeypatch.setattr(cls, "uses_evaluation", lambda self: True)
    before = key(cls(), imported, hook)
    assert before != key(cls(), imported)
    write(imported, {"data.py": "def evaluate(run): return {}\n"})
    assert key(cls(), imported, hook) != before


def test_our_own_classes_are_as_their_room() -> None:
    assert library_of(ONNXRuntime) == library_of(TensorRT) == keys.HOUSE / "engines"


def test_an_engine_depends_on_its_machine_and_options() -> None:
    machine = here(threads=2)
    given = [
        ("before", ONNXRuntime(), machine),
        ("other", ONNXRuntime(), machine),
        ("before", ONNXRuntime(graph_optimization="none"), machine),
        ("before", ONNXRuntime(), dataclasses.replace(machine, threads=3)),
        ("before", ONNXRuntime(), dataclasses.replace(machine, isa=())),
        ("before", ONNXRuntime(), dataclasses.replace(machine, device="cuda", arch=("sm_89",))),
    ]
    assert len({engine_key(*one) for one in given}) == len(given)


def test_candidates_share_their_steps_up_to_where_they_part(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"")
    data: dict[str, Any] = {
        "name": "toy",
        "model": {"onnx": "m.onnx"},
        "inputs": {"x": {"shape": [2, 3]}},
        "passes": ["simplify"],
        "backends": ["onnxruntime", "openvino"],
    }

    def found(**changes: Any) -> list[list[str]]:
        plan = make_plan(load_spec_data({**data, **changes}, tmp_path), lambda _: here(threads=2))
        return [keys_of(one, plan.spec, ORIGINAL, plan.target, tmp_path) for one in plan.candidates]

    first, second = found()
    assert first[0] == second[0]
    assert first[1] != second[1]
    assert found() == [first, second]
    assert not {*first, *second} & {key for one in found(seed=7) for key in one}


def test_the_original_under_other_inputs_is_another(tmp_path: Path) -> None:
    def root(**changes: Any) -> str:
        data = {
            "name": "toy",
            "model": {"onnx": "m.onnx"},
            "inputs": {"x": {"shape": [2, 3]}},
            "backends": ["onnxruntime"],
            **changes,
        }
        spec = load_spec_data(data, tmp_path).spec
        assert spec is not None
        return root_key(spec, ORIGINAL)

    assert root() == root(name="other", budget={"cosine": 0.9})
    assert len({root(), root(seed=3), root(inputs={"x": {"shape": [2, 4]}})}) == 3
