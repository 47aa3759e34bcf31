"""The part of a spec that says how a bundle is served."""

from __future__ import annotations

import pytest

from megacompile.spec.deploy import Port, Triton, Versions

PORT = {"dtype": "float32", "shape": [3]}
BEFORE = {"python": "m.py:before", "inputs": {"text": {"dtype": "string", "shape": [-1]}}}
AFTER = {"python": "m.py:after", "outputs": {"label": PORT}}


def test_all_is_automatic_unless_it_is_written() -> None:
    triton = Triton()
    assert (triton.platform, triton.max_batch_size, triton.instances) == ("python", "auto", 1)
    assert triton.versions == Versions(latest=1)
    assert triton.hooks == []


def test_both_steps_travel_with_the_bundle() -> None:
    triton = Triton.model_validate({"preprocess": BEFORE, "postprocess": AFTER})
    assert triton.hooks == ["m.py:before", "m.py:after"]


def test_a_size_of_a_port_may_vary_and_is_never_zero() -> None:
    assert Port.model_validate({**PORT, "shape": [-1, 3]}).shape == [-1, 3]
    for shape in ([0], [-2]):
        with pytest.raises(ValueError, match=r"got 0|greater than or equal to -1"):
            Port.model_validate({**PORT, "shape": shape})


@pytest.mark.parametrize("versions", [{}, {"latest": 1, "specific": [2]}])
def test_versions_are_the_newest_or_named_ones(versions: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="one of them"):
        Versions.model_validate(versions)


@pytest.mark.parametrize(
    "triton",
    [
        {"model_name": "../x"},
        {"max_batch_size": -1},
        {"preferred_batch_sizes": [0]},
        {"instances": 0},
        {"platform": "onnx"},
        {"versions": "some"},
        {"preprocess": {**BEFORE, "inputs": {}}},
        {"max_batch": 3},
    ],
)
def test_what_no_server_takes_is_refused(triton: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(triton))):
        Triton.model_validate(triton)
