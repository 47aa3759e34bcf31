"""A captured program is checked: it has no state."""

from __future__ import annotations

from pathlib import Path

import pytest

from megacompile.errors import ModelError
from tests.passes import models
from tests.passes.convert.conversions import export


@pytest.mark.parametrize("how", ["add", "index", "copy", "assign"])
def test_a_mutated_buffer_is_refused(how: str, tmp_path: Path) -> None:
    model = models.counter(how)
    untouched = models.Untouched(model.module)
    with pytest.raises(ModelError, match=r"buffer 'n' is mutated[\s\S]*input and an output"):
        export(model, tmp_path)
    untouched.check()
