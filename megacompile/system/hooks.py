"""The user's Python: `FILE.py:NAME` beside the spec, or `package.module:NAME`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from megacompile.errors import Audience, MegacompileError, ModelError, SpecError, did_you_mean

USER_MODULES = "megacompile_user_"


def is_user_module(name: str) -> bool:
    """Whether a module was loaded from a FILE.py beside a spec."""
    return name.startswith(USER_MODULES)


def locate(reference: str, base: Path) -> tuple[Path | None, str]:
    """The file a reference names (None for a module) and the name inside it; nothing is run.

    Raises:
        SpecError: no ':' or no such file.
    """
    target, _, name = reference.rpartition(":")
    if not target or not name:
        raise SpecError(
            what=f"'{reference}' names no Python object",
            expected="FILE.py:NAME or package.module:NAME",
        )
    if not target.endswith(".py"):
        return None, name
    path = (base / target).resolve()
    if not path.is_file():
        raise SpecError(
            what=f"no such file '{target}'",
            expected=f"a Python file in {base}",
            remedy=did_you_mean(path.name, [p.name for p in path.parent.glob("*.py")]),
        )
    return path, name


def load(reference: str, base: Path) -> Any:
    """Import the object a reference names.

    A file gets a module name made from its path, the same in every process, so that its classes
    can be stored and read back.

    Raises:
        SpecError: no such file, module or name, or the file itself raises while it is read.
    """
    path, name = locate(reference, base)
    target = reference.rpartition(":")[0]
    try:
        module = _load_file(path) if path else importlib.import_module(target)
    except ModuleNotFoundError as error:
        if path is None and error.name and target.startswith(error.name):
            raise SpecError(
                what=f"no Python module '{target}'",
                cause=str(error),
                remedy="install it, or write FILE.py:NAME",
            ) from error
        raise fault_of(error, SpecError, f"'{target}' can't be imported") from error
    except Exception as error:
        raise fault_of(error, SpecError, f"'{target}' raises while it is imported") from error
    if not hasattr(module, name):
        public = [n for n in vars(module) if not n.startswith("_")]
        raise SpecError(what=f"'{target}' has no '{name}'", remedy=did_you_mean(name, public))
    return getattr(module, name)


def _load_file(path: Path) -> Any:
    # The hash keeps a/b.py, a_b.py and a-b.py apart.
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:12]
    module_name = USER_MODULES + re.sub(r"\W", "_", path.stem) + "_" + digest
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    # Files beside it can be imported by their own names, as when it is run as a script.
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    finally:
        sys.path.remove(str(path.parent))
    return module


def call(
    what: str, hook: Callable[..., Any], *arguments: Any, leaf: type[MegacompileError] = ModelError
) -> Any:
    """Call a user's hook; what it raises becomes one error that names the user's own line.

    Raises:
        MegacompileError: of the given leaf, from the hook's exception.
    """
    try:
        return hook(*arguments)
    except MegacompileError:
        raise
    except Exception as error:
        raise fault_of(error, leaf, f"{what} raises") from error


def fault_of(
    error: Exception, leaf: type[MegacompileError], what: str, audience: Audience = "user"
) -> MegacompileError:
    """An exception out of somebody's Python as one error that names the line it came from."""
    ours = str(Path(__file__).parents[1])
    stack = traceback.extract_tb(error.__traceback__)
    frames = [f for f in stack if not f.filename.startswith((ours, "<"))]
    # A line inside a library helps nobody.
    own = [f for f in frames if "site-packages" not in f.filename and "importlib" not in f.filename]
    frame = next(reversed(own), None)
    message = str(error).strip().splitlines()
    where = f"{frame.filename}:{frame.lineno}" if frame else None
    if isinstance(error, SyntaxError) and error.filename:
        where = f"{error.filename}:{error.lineno}"
    return leaf(
        what=what,
        where=where,
        cause=f"{type(error).__name__}: {message[0] if message else ''}".rstrip(": "),
        remedy="mend it there; the rest of the build waits for it",
        audience=audience,
    )
