"""What runs inside Triton's Python backend: any bundle, or a Python step of the user's.

A repository's `model.py` is three lines that import a class from here; the module
`triton_python_backend_utils` exists inside the server alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megacompile.engines import load
from megacompile.errors import MegacompileError
from megacompile.models import Feeds
from megacompile.system import hooks

BUNDLE, HOOKS = "bundle", "hooks"
Run = Callable[[Feeds], Mapping[str, Any]]


class _Step:
    """The protocol of Triton's Python backend around one function of arrays."""

    run: Run
    joins = True
    """Whether requests of equal shapes are run as one."""

    def initialize(self, args: Mapping[str, str]) -> None:
        self.config: dict[str, Any] = json.loads(args["model_config"])
        self.inputs = [one["name"] for one in self.config["input"]]
        self.outputs = [one["name"] for one in self.config["output"]]
        self.batched = int(self.config["max_batch_size"]) > 0
        folder = Path(args["model_repository"]) / args["model_version"]
        self.run = self.load(folder)

    def load(self, folder: Path) -> Run:
        raise NotImplementedError

    def parameter(self, name: str) -> str:
        return str(self.config["parameters"][name]["string_value"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer all requests; what is wrong with one is said to that one alone."""
        import triton_python_backend_utils as utils

        feeds = [
            {name: utils.get_input_tensor_by_name(request, name).as_numpy() for name in self.inputs}
            for request in requests
        ]
        answers = answer(self.run, feeds, self.batched and self.joins)
        return [self._response(utils, one) for one in answers]

    def _response(self, utils: Any, found: Feeds | Exception) -> Any:
        if isinstance(found, Exception):
            return utils.InferenceResponse(output_tensors=[], error=utils.TritonError(str(found)))
        tensors = [utils.Tensor(name, np.ascontiguousarray(found[name])) for name in self.outputs]
        return utils.InferenceResponse(output_tensors=tensors)


class Bundle(_Step):
    """A bundle's engine."""

    def load(self, folder: Path) -> Run:
        model = load(folder / BUNDLE)
        return model.leaves


class Hook(_Step):
    """A Python step of the user's: arrays by name in, arrays by name out.

    Each request is run by itself: what such a step does with one text may depend on the others of
    its call (padding to the longest).
    """

    joins = False

    def load(self, folder: Path) -> Run:
        hook = hooks.load(self.parameter("hook"), folder / HOOKS)
        expected = set(self.outputs)

        def run(feeds: Feeds) -> Mapping[str, Any]:
            found = hook(**feeds)
            if not isinstance(found, Mapping) or not expected <= set(found):
                got = ", ".join(found) if isinstance(found, Mapping) else type(found).__name__
                raise ValueError(
                    f"'{self.parameter('hook')}' must return {sorted(expected)} by "
                    f"name; it returned {got}"
                )
            return {name: np.asarray(found[name]) for name in expected}

        return run


def answer(run: Run, requests: Sequence[Feeds], batched: bool) -> list[Feeds | Exception]:
    """Run requests, those of equal shapes and dtypes together; the answers in their order.

    If a run of several fails, each is run by itself, so that the faulty one alone gets the error.
    """
    answers: list[Feeds | Exception | None] = [None] * len(requests)
    groups: dict[Any, list[int]] = {}
    for index, feeds in enumerate(requests):
        key = tuple((n, a.shape[1:], a.dtype.str) for n, a in feeds.items()) if batched else index
        groups.setdefault(key, []).append(index)
    for members in groups.values():
        together = _together(run, [requests[index] for index in members])
        for index, one in zip(members, together, strict=True):
            answers[index] = one
    return [one for one in answers if one is not None]


def _together(run: Run, requests: Sequence[Feeds]) -> list[Feeds | Exception]:
    if len(requests) == 1:
        return [_alone(run, requests[0])]
    joined = {name: np.concatenate([feeds[name] for feeds in requests]) for name in requests[0]}
    try:
        found = run(joined)
    except Exception:  # noqa: BLE001 - which of them it was shows when each runs by itself
        return [_alone(run, feeds) for feeds in requests]
    ends = np.cumsum([len(next(iter(feeds.values()))) for feeds in requests])
    parts = {name: np.split(np.asarray(value), ends[:-1]) for name, value in found.items()}
    count = len(requests)
    return [{name: split[number] for name, split in parts.items()} for number in range(count)]


def _alone(run: Run, feeds: Feeds) -> Feeds | Exception:
    try:
        return {name: np.asarray(value) for name, value in run(feeds).items()}
    except MegacompileError as error:
        return error
    except Exception as error:  # noqa: BLE001 - the server must live, whatever a request does
        return RuntimeError(f"{type(error).__name__}: {error}")
