"""What would make an original unfit, found one by one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megacompile.errors import ModelError
from megacompile.measure.sanity_checks import (
    changed_state,
    check_inputs_untouched,
    check_optional,
    check_repeatable,
)
from megacompile.models import Form, load_original
from megacompile.spec import Spec
from tests.measure.toys import make_spec

SCALE = {"shape": ["n"], "optional": True}


def original(folder: Path, spec: Spec) -> Form:
    form = load_original(spec, folder)
    form.signature = form.signature.with_outputs(["y"], {"dict": {}}, ["float32"])
    return form


def test_answers_may_differ_by_rounding_and_no_more() -> None:
    one = {"y": np.float32([[1, 2], [3, 4]])}
    check_repeatable(one, {"y": one["y"] * np.float32(1 + 1e-6)})
    with pytest.raises(ModelError, match=r"different answers(.|\n)*2\.1 instead of 2"):
        check_repeatable(one, {"y": np.float32([[1, 2.1], [3, 4]])})


def test_a_call_leaves_its_inputs_alone(tmp_path: Path) -> None:
    check_inputs_untouched(original(tmp_path, make_spec(tmp_path)))
    writing = original(tmp_path, make_spec(tmp_path, "Writing"))
    with pytest.raises(ModelError, match=r"x = x\.clone\(\)"):
        check_inputs_untouched(writing)


@pytest.mark.parametrize(
    ("model", "changed"),
    [("Counting", "buffer 'calls' is mutated"), ("Remembering", "an attribute changes")],
)
def test_what_changes_is_named(model: str, changed: str, tmp_path: Path) -> None:
    assert changed_state(original(tmp_path, make_spec(tmp_path, model))) == changed


def test_a_default_means_what_leaving_out_means(tmp_path: Path) -> None:
    for default in (1, 2):
        inputs = {"x": {"shape": ["n", 4]}, "scale": {**SCALE, "default": default}}
        spec = make_spec(tmp_path, "Optional", inputs=inputs)
        form = original(tmp_path, spec)
        if default == 1:
            check_optional(form, spec)
        else:
            with pytest.raises(ModelError, match="default of optional input 'scale'") as caught:
                check_optional(form, spec)
            assert caught.value.got == "2"
            assert caught.value.where == "inputs.scale.default"
