"""The user's Python: found, loaded once, and blamed with its own line."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path

import pytest

from megacompile.errors import DataError, ModelError, SpecError
from megacompile.system import hooks

CODE = """
import helper
class Thing:
    pass
def build():
    return helper.VALUE
def broken():
    return {}["key"]
"""


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "m.py").write_text(CODE)
    (tmp_path / "helper.py").write_text("VALUE = 3\n")
    return tmp_path


@pytest.fixture(autouse=True)
def forget() -> None:
    sys.modules.pop("helper", None)


def test_a_file_is_loaded_once_with_its_siblings(base: Path) -> None:
    path = list(sys.path)
    build = hooks.load("m.py:build", base)
    assert build() == 3
    assert hooks.load("m.py:build", base) is build
    assert hooks.is_user_module(build.__module__)
    assert sys.path == path
    thing = hooks.load("m.py:Thing", base)
    assert isinstance(pickle.loads(pickle.dumps(thing())), thing)


def test_two_files_of_one_name(base: Path) -> None:
    other = base / "other"
    other.mkdir()
    (other / "m.py").write_text("def build():\n    return 4\n")
    assert hooks.load("m.py:build", base)() == 3
    assert hooks.load("m.py:build", other)() == 4
    assert hooks.load("other/m.py:build", base)() == 4


def test_names_that_only_differ_in_their_punctuation(base: Path) -> None:
    for number, name in enumerate(["a-b", "a_b"]):
        (base / f"{name}.py").write_text(f"VALUE = {number}\n")
    assert [hooks.load(f"{n}.py:VALUE", base) for n in ("a-b", "a_b")] == [0, 1]


def test_a_module(base: Path) -> None:
    assert hooks.load("json:loads", base)("1") == 1
    assert hooks.locate("json:loads", base) == (None, "loads")


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("m.py", "names no Python object"),
        ("m.py:", "names no Python object"),
        ("mm.py:build", r"no such file 'mm.py'(.|\n)*did you mean 'm.py'"),
        ("m.py:built", r"'m.py' has no 'built'(.|\n)*did you mean 'build'"),
        ("no_such_module_here:x", "no Python module"),
        ("json:lods", "did you mean 'loads'"),
    ],
)
def test_what_is_not_there(reference: str, message: str, base: Path) -> None:
    with pytest.raises(SpecError, match=message):
        hooks.load(reference, base)


@pytest.mark.parametrize(
    ("code", "line", "cause"),
    [
        ("x = 1\ny = 1 / 0\n", 2, "ZeroDivisionError"),
        ("x = (\n", 1, "SyntaxError"),
        ("import no_such_module_here\n", 1, "No module named 'no_such_module_here'"),
    ],
)
def test_a_file_that_raises(code: str, line: int, cause: str, base: Path) -> None:
    (base / "bad.py").write_text(code)
    for _ in range(2):  # a failed import is not remembered as a module
        with pytest.raises(SpecError, match=re.escape(cause)) as caught:
            hooks.load("bad.py:x", base)
        assert f"bad.py:{line}" in str(caught.value)


def test_a_hook_that_raises_is_blamed_with_its_line(base: Path) -> None:
    broken = hooks.load("m.py:broken", base)
    with pytest.raises(ModelError, match=r"m\.py:8: the model raises\n.*KeyError: 'key'"):
        hooks.call("the model", broken)
    with pytest.raises(DataError):
        hooks.call("the data", broken, leaf=DataError)


def test_our_own_errors_pass_through() -> None:
    def hook() -> None:
        raise DataError(what="mine")

    with pytest.raises(DataError, match=r"^mine$"):
        hooks.call("the model", hook)
