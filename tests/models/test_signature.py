"""How named inputs reach forward, and what a caller may give."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from megacompile.errors import ModelError
from megacompile.models.signature import Signature, bind
from megacompile.spec import Spec


def signature(inputs: dict[str, Any], dims: dict[str, Any] | None = None) -> Signature:
    spec = Spec(name="a", model={"onnx": "a"}, inputs=inputs, dims=dims or {})
    return Signature(spec.inputs, spec.dims)


X = {"shape": ["batch", 2]}
DIMS = {"batch": {"min": 1, "typical": 2, "max": 4}}


def bound(forward: Callable[..., Any], *names: str) -> Any:
    """What forward gets when each input holds its own name."""
    binding = bind(forward, dict.fromkeys(names), "model")
    args, kwargs = binding.split({name: name for name in names})
    return forward(*args, **kwargs)


def test_binding_by_name_and_by_position() -> None:
    def forward(a: Any, b: Any = 0) -> Any:
        return a, b

    assert bound(forward, "b", "a") == ("a", "b")
    assert bound(forward, "a") == ("a", 0)
    assert bound(forward, "x", "y") == ("x", "y")
    assert bound(forward, "x") == ("x", 0)


def test_keyword_only_and_positional_only() -> None:
    def keyword(a: Any, *, mask: Any) -> Any:
        return a, mask

    def positional(a: Any, /, b: Any) -> Any:
        return a, b

    assert bound(keyword, "mask", "a") == ("a", "mask")
    assert bound(positional, "a", "b") == ("a", "b")
    with pytest.raises(ModelError, match="more inputs than"):
        bound(keyword, "x", "y")


def test_open_parameters() -> None:
    def many(*args: Any) -> Any:
        return args

    def named(**kwargs: Any) -> Any:
        return kwargs

    def mixed(a: Any, **kwargs: Any) -> Any:
        return a, kwargs

    assert bound(many, "x", "y") == ("x", "y")
    assert bound(named, "x") == {"x": "x"}
    assert bound(mixed, "a", "more") == ("a", {"more": "more"})


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a", "mask"], r"input 'mask' is no parameter(.|\n)*did you mean 'masks'"),
        (["masks"], "needs 'a', which the spec lacks"),
        (["x", "y", "z"], "more inputs than"),
    ],
)
def test_what_does_not_fit_forward(names: list[str], message: str) -> None:
    def forward(a: Any, masks: Any) -> Any:
        return a, masks

    with pytest.raises(ModelError, match=message) as caught:
        bound(forward, *names)
    assert "forward(a: Any, masks: Any)" in str(caught.value).replace("'", "")


NESTED = signature(
    {
        "x": X,
        "flag": {"value": True},
        "state": {"tuple": [X, {"dict": {"k": X}}]},
        "mask": {"shape": ["batch"], "dtype": "int64", "optional": True, "default": 1},
    },
    DIMS,
)


def ones(rows: int = 3) -> np.ndarray[Any, Any]:
    return np.ones((rows, 2), np.float32)


def test_nested_inputs_are_taken_apart() -> None:
    feeds = NESTED.complete({"x": ones(), "state": (ones(), {"k": ones()}), "flag": True})
    assert list(feeds) == ["x", "state.0", "state.1.k", "mask"]
    assert feeds["mask"].tolist() == [1, 1, 1]
    assert feeds["mask"].dtype == np.int64
    by_leaf = NESTED.complete({"x": ones(), "state.0": ones(), "state.1.k": ones()})
    assert list(by_leaf) == list(feeds)
    arguments = NESTED.arguments(lambda name: name)
    assert arguments == {
        "x": "x",
        "flag": True,
        "state": ("state.0", {"k": "state.1.k"}),
        "mask": "mask",
    }


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"y": ones()}, r"unknown input 'y'"),
        ({"x": None}, "input 'x' is missing"),
        ({"flag": False}, "built into the artifact"),
        ({"state": ones()}, "is a tuple of 2"),
        ({"state": (ones(), {"j": ones()})}, r"'state.1' is a dict"),
        ({"x": np.ones((3, 2))}, "another dtype"),
        ({"x": np.ones((3, 2), np.int64)}, "another dtype"),
        ({"x": np.ones(3, np.float32)}, "another rank"),
        ({"x": ones(2)}, "another size"),
        ({"mask": np.ones(2, np.int64)}, "another size"),
        ({"x": "text"}, "another dtype"),
    ],
)
def test_what_a_caller_may_not_give(change: dict[str, Any], message: str) -> None:
    given = {"x": ones(), "state": (ones(), {"k": ones()})}
    with pytest.raises(ModelError, match=message):
        NESTED.complete({**given, **change})


def test_sizes_outside_the_dims() -> None:
    one = signature({"x": X}, DIMS)
    with pytest.raises(ModelError, match=r"dim 'batch' is outside(.|\n)*1 to 4(.|\n)*got: 5"):
        one.complete({"x": ones(5)})
    assert one.sizes_of({"x": ones(4)}) == {"batch": 4}
    assert one.complete({"x": [[1, 2]]})["x"].dtype == np.float32


def test_as_plain_data() -> None:
    full = NESTED.with_outputs(["y"], {"tensor": "y"}, ["float32"])
    assert Signature.from_dict(json.loads(json.dumps(full.to_dict()))) == full
