"""The example of a user's own pass: alone, in a plan, and in a build."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import megacompile
from megacompile.errors import PassError
from megacompile.models.forms import Eager
from megacompile.models.signature import bind
from megacompile.models.source import base_signature
from megacompile.plan.backends import Machine
from megacompile.plan.passes import Effect
from megacompile.plan.planner import make_plan
from megacompile.spec import Spec, load_spec
from tests.passes.context import make_context

from .conftest import SPECS, load_hooks

pytest.importorskip("sklearn")
MINE = "fuse-conv-batchnorm"


@pytest.fixture(scope="module")
def passes() -> ModuleType:
    return load_hooks("my_passes")


@pytest.fixture(scope="module")
def spec() -> Spec:
    found = load_spec(SPECS / "digits_custom.yaml").spec
    assert found is not None
    return found


@pytest.fixture
def digits(spec: Spec) -> Eager:
    torch.manual_seed(0)
    module = load_hooks("digits_cnn").DigitsNet().eval()
    for one in module.modules():
        if isinstance(one, torch.nn.BatchNorm2d):  # as training leaves them
            one.running_mean.uniform_(-1, 1)
            one.running_var.uniform_(0.5, 2)
    signature = base_signature(spec).with_outputs(["output"], {"tensor": "output"}, ["float32"])
    return Eager(module, signature, bind(module.forward, spec.inputs, "model"))


@pytest.fixture
def run(passes: ModuleType, digits: Eager, tmp_path: Path) -> Callable[..., Any]:
    return lambda **options: passes.FuseConvBatchNorm(**options).run(
        digits, make_context(tmp_path, digits.signature)
    )


def test_plan() -> None:
    plan = make_plan(load_spec(SPECS / "digits_custom.yaml"), lambda _: Machine("cpu", 2, ()))
    assert [c.name for c in plan.candidates] == ["fused/onnxruntime", "fused/torchscript"]
    for candidate in plan.candidates:
        assert candidate.steps[0].pass_.name == MINE
        assert candidate.effect is Effect.EXACT


def test_numbers_and_sites(digits: Eager, run: Callable[..., Any]) -> None:
    before = {k: v.clone() for k, v in digits.module.state_dict().items()}
    feeds = {"image": np.random.default_rng(0).integers(0, 17, (5, 1, 8, 8), dtype=np.uint8)}
    expected = digits.run(feeds)["output"]
    result = run()
    assert (result.sites.matched, result.sites.changed) == (3, 3)
    np.testing.assert_allclose(result.model.run(feeds)["output"], expected, rtol=1e-4, atol=1e-5)
    kinds = [type(m) for m in result.model.module.modules()]
    assert torch.nn.BatchNorm2d not in kinds
    after = digits.module.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[key], before[key]) for key in before)


def test_the_selector(run: Callable[..., Any]) -> None:
    result = run(only=("features.0.*", "features.3.0"))
    assert result.sites.changed == 2
    assert result.sites.skipped == [("features.1.0", "not named by `only`")]
    with pytest.raises(PassError, match=r"selector 'featurs.0.0' of `only` matches nothing"):
        run(only=("featurs.0.0",))


def test_nothing_to_fuse_is_an_error(
    passes: ModuleType, run: Callable[..., Any], digits: Eager, tmp_path: Path
) -> None:
    fused = run().model
    with pytest.raises(PassError, match="no convolution could be fused"):
        passes.FuseConvBatchNorm().run(fused, make_context(tmp_path, digits.signature))


@pytest.mark.slow
def test_build(spec: Spec, tmp_path: Path) -> None:
    data = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    data["benchmark"] = {"baselines": ["eager"], "points": [{"batch": 1}], "seconds": 2}
    options = megacompile.Options(
        build_dir=tmp_path / "build", report_dir=tmp_path / "report", cache_dir=tmp_path / "cache"
    )
    result = megacompile.build(Spec(**data), options, base=SPECS)
    candidates = {c.name: c for c in result.report.candidates}
    assert set(candidates) == {"fused/onnxruntime", "fused/torchscript"}
    for candidate in candidates.values():
        assert candidate.status in ("built", "outside_budget"), candidate.reason
        step = candidate.steps[0]
        assert step.pass_ == MINE
        assert step.sites is not None
        assert step.sites.changed == 3
    assert result.report_path.is_file()
