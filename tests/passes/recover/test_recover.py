"""`recover`: trained until the answers are right again, in float and with rounded values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megacompile_passes.convert.export import Export
from megacompile_passes.precision.quantize.exported import QuantizeExported
from megacompile_passes.recover import data as recovery_data
from megacompile_passes.recover.eager import RecoverEager
from megacompile_passes.recover.quantized import RecoverQuantized
from megacompile_passes.structure.share_parameters.eager import ShareParametersEager
from pydantic import ValidationError
from torch import nn

from megacompile.errors import DataError, ModelError, PassError
from megacompile.models.forms import Eager
from megacompile.models.tensors import Feeds
from megacompile.models.torchmodules import copy_module
from megacompile.plan.passes import Metrics, PassContext
from tests.passes.context import example, make_context
from tests.passes.models import Untouched, cosine, dim, make_eager, tensor

WIDTH, CLASSES = 16, 5
DATA = """
import numpy as np

def batches():
    random = np.random.default_rng(0)
    x = random.standard_normal((256, 16)).astype(np.float32)
    yield {"x": x, "label": x[:, :5].argmax(1), "gate": (x > -1.5).astype(np.int64)}

def loss(outputs, batch):
    import torch.nn.functional as F
    return F.cross_entropy(outputs, batch["label"])

def broken(outputs, batch):
    return outputs

def one():
    yield {"x": np.ones((1, 16), dtype=np.float32)}

def other_names():
    yield {"y": np.ones((8, 16), dtype=np.float32)}

def infinite():
    yield {"x": np.full((64, 16), np.inf, dtype=np.float32)}
"""


class Net(nn.Module):
    """Two blocks of one kind that a recovery can share, with dropout and a normalization."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm1d) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, WIDTH)) for _ in range(2)
        )
        self.drop, self.norm = nn.Dropout(0.5), norm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.drop(self.norm(x)))


def net() -> Eager:
    torch.manual_seed(0)
    model = make_eager(Net(), {"x": tensor("batch", WIDTH)}, {"batch": dim(1, 8, 512)}, ["logits"])
    with torch.no_grad():
        model.module.norm.running_mean.normal_()  # type: ignore[union-attr, operator]
    return model


def of_layer_norm() -> Eager:
    """The net without batch statistics, for which torchao looks long for what they fold into."""
    torch.manual_seed(0)
    model = Net(nn.LayerNorm)
    with torch.no_grad():
        for one in model.modules():
            if isinstance(one, nn.Linear):
                one.weight[0, 0] *= 8  # an outlier, as trained weights have, stretches the grid
    return make_eager(model, {"x": tensor("batch", WIDTH)}, {"batch": dim(1, 8, 512)}, ["logits"])


def spoiled(model: Eager, size: float = 0.15) -> Eager:
    """The model with noise on its weights: what a lossy pass leaves."""
    own = model.copy()
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in own.module.parameters():
            parameter.add_(torch.randn_like(parameter) * size)
    return own


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Tiny products: on a busy machine threads that wait for each other take most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def world(tmp_path: Path) -> tuple[Eager, PassContext]:
    """The original, and a context that knows it."""
    (tmp_path / "data.py").write_text(DATA)
    model = net()
    (tmp_path / "steps").mkdir()
    context = make_context(tmp_path / "steps", model.signature)
    return model, replace(context, base=tmp_path, original=lambda: model)


def recover(**options: Any) -> dict[str, Any]:
    return {
        "batches": "data.py:batches",
        "steps": 60,
        "batch_size": 64,
        "optimizer": {"adamw": {"lr": 1e-2, "weight_decay": 0.0}},
        **options,
    }


def probe(model: Eager) -> Feeds:
    return example(model.signature, {"batch": 200}, seed=5)


@pytest.mark.parametrize(
    "distill",
    [
        {},
        {"loss": "cosine"},
        {"loss": "kl", "temperature": 2.0},
        {"hidden": ["blocks.*"], "weight": 0.5},
        {"weight": 0, "hidden": ["norm", "head"]},
    ],
    ids=["mse", "cosine", "kl", "hidden", "hidden-alone"],
)
def test_distillation_brings_the_answers_back(
    world: tuple[Eager, PassContext], distill: dict[str, Any]
) -> None:
    original, context = world
    model = spoiled(original)
    untouched = [Untouched(model.module), Untouched(original.module)]
    result = RecoverEager(**recover(distill=distill)).run(model, context)
    for one in untouched:
        one.check()
    feeds = probe(original)
    before, after = (1 - cosine(m.run(feeds), original.run(feeds)) for m in (model, result.model))
    assert after < before / 2
    record = result.recovery
    assert record is not None
    best = min(record.looks, key=lambda look: look.value)
    assert best.step == record.best_step > 0
    assert len(record.losses) == record.steps == 60
    assert result.sites.changed == len(list(Net().parameters()))
    assert not any(one.training for one in result.model.module.modules())
    assert all(p.requires_grad and p.grad is None for p in result.model.module.parameters())


def test_shared_parameters_stay_shared(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    share = ShareParametersEager(mode="group", groups=[["blocks.0", "blocks.1"]])
    shared = share.run(original, context).model
    found = RecoverEager(**recover(distill={"hidden": ["blocks.1"]})).run(shared, context).model
    assert found.parameters() == shared.parameters() < original.parameters()
    assert found.module.blocks[0][0].weight is found.module.blocks[1][0].weight  # type: ignore
    feeds = probe(original)
    assert cosine(found.run(feeds), original.run(feeds)) > cosine(
        shared.run(feeds), original.run(feeds)
    )


@pytest.mark.parametrize(
    "task",
    [{"labels": "label", "label_smoothing": 0.1}, {"loss": "data.py:loss"}],
    ids=["labels", "own-loss"],
)
def test_the_task_itself_is_learned(world: tuple[Eager, PassContext], task: dict[str, Any]) -> None:
    original, context = world

    def accuracy(run: Any) -> Metrics:
        (batch,) = _batches()
        right = run({"x": batch["x"]})["logits"].argmax(1) == batch["label"]
        return {"accuracy": {"value": float(right.mean()), "higher_is_better": True}}

    context = replace(context, evaluate=accuracy)
    result = RecoverEager(**recover(task=task, steps=80)).run(original, context)
    record = result.recovery
    assert record is not None
    before, after = record.metric_before["accuracy"].value, record.metric_after["accuracy"].value
    assert before < 0.4 < 0.8 < after
    assert accuracy(result.model.run)["accuracy"]["value"] == after


def _batches() -> Iterator[dict[str, Any]]:
    scope: dict[str, Any] = {}
    exec(DATA, scope)
    return scope["batches"]()


def test_the_best_weights_by_the_metric_are_kept_and_patience_ends_the_run(
    world: tuple[Eager, PassContext],
) -> None:
    original, context = world
    values = iter([0.1, 0.1, 0.5, 0.9, 0.3, 0.2, 0.2, 0.4])
    seen: list[Feeds] = []

    def evaluate(run: Any) -> Metrics:
        seen.append(run(probe(original)))
        return {"score": {"value": next(values), "higher_is_better": True}}

    options = recover(distill={}, monitor="score", check_every=5, patience=2, steps=100)
    result = RecoverEager(**options).run(spoiled(original), replace(context, evaluate=evaluate))
    record = result.recovery
    assert record is not None
    assert [look.value for look in record.looks] == [0.1, 0.5, 0.9, 0.3, 0.2]
    assert (record.best_step, record.steps, record.planned_steps) == (10, 20, 100)
    kept = result.model.run(probe(original))
    np.testing.assert_array_equal(kept["logits"], seen[3]["logits"])
    assert any("stopped after 20 of 100" in note for note in result.notes)
    assert any("upper end" in note for note in result.notes)


def test_an_interrupted_run_goes_on_and_ends_as_if_it_had_not_been(
    world: tuple[Eager, PassContext], tmp_path: Path
) -> None:
    original, context = world
    options = RecoverEager(
        **recover(
            distill={},
            steps=30,
            sampling="loss-weighted",
            checkpoint_seconds=0,
            masking={"input": "x", "share": 0.2},
            accumulate=2,
        )
    )
    whole = options.run(spoiled(original), context).model.run(probe(original))

    def stop(done: int, total: int, note: str) -> None:
        if done == 17:
            raise KeyboardInterrupt

    resume = tmp_path / "runs"
    with pytest.raises(KeyboardInterrupt):
        options.run(spoiled(original), replace(context, resume=resume, advance=stop))
    # The last checkpoint is damaged: the one before it is used, and named.
    names = sorted(resume.iterdir(), key=lambda p: int(p.name.split("-")[1]))
    assert [p.name for p in names] == ["checkpoint-15", "checkpoint-16"]
    weights = names[1] / "tensors.safetensors"
    weights.write_bytes(weights.read_bytes()[:-7])
    again = options.run(spoiled(original), replace(context, resume=resume))
    np.testing.assert_allclose(
        again.model.run(probe(original))["logits"], whole["logits"], rtol=1e-5, atol=1e-6
    )
    assert any(
        "continued after step 15" in note and "checkpoint-16" in note for note in again.notes
    )
    assert again.recovery is not None
    assert len(again.recovery.losses) == 30


def test_the_range_test_finds_a_rate_and_puts_everything_back(
    world: tuple[Eager, PassContext],
) -> None:
    original, context = world
    result = RecoverEager(**recover(distill={}, lr_range_test=60, steps=40)).run(
        spoiled(original), context
    )
    assert result.recovery is not None
    assert 1e-5 < result.recovery.learning_rate < 0.2
    assert any("range test" in note for note in result.notes)


def test_masking_replaces_a_share_and_keeps_special_values() -> None:
    batch = {"x": torch.arange(10_000).reshape(100, 100) % 10, "y": torch.zeros(100)}
    choice = RecoverEager(
        **recover(distill={}, masking={"input": "x", "share": 0.3, "value": 99, "keep": [0, 1]})
    ).masking
    assert choice is not None
    found = recovery_data.masked(batch, choice, torch.Generator().manual_seed(0))
    changed = found["x"] != batch["x"]
    assert not changed[(batch["x"] == 0) | (batch["x"] == 1)].any()
    assert float(changed[batch["x"] > 1].float().mean()) == pytest.approx(0.3, abs=0.02)
    assert set(found["x"][changed].tolist()) == {99}


def test_clipped_activations_stay_clipped_in_what_is_exported(
    world: tuple[Eager, PassContext],
) -> None:
    original, context = world
    options = recover(distill={}, clip_activations={"modules": ["blocks.*.1"], "percentile": 80})
    result = RecoverEager(**options).run(spoiled(original), context)
    assert "2 modules' outputs are clamped" in result.notes[0]
    program = Export().run(result.model, context).model.program
    names = [str(node.target) for node in program.graph.nodes]
    assert sum("clamp" in name for name in names) == 2
    feeds = probe(original)
    free = RecoverEager(**recover(distill={})).run(spoiled(original), context).model
    assert cosine(free.run(feeds), result.model.run(feeds)) < 1 - 1e-5


def test_frozen_parameters_stay_and_flags_come_back(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    model = spoiled(original)
    for parameter in model.module.parameters():
        parameter.requires_grad_(False)  # as models for inference often are
    found = RecoverEager(**recover(distill={}, freeze=["blocks.0.*"])).run(model, context)
    before, after = (dict(m.module.named_parameters()) for m in (model, found.model))
    for name, value in after.items():
        assert torch.equal(value, before[name]) == name.startswith("blocks.0."), name
        assert not value.requires_grad
    assert {site for site, _ in found.sites.skipped} == {
        name for name in before if name.startswith("blocks.0.")
    }


def test_batch_statistics_move_only_when_asked(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    model = spoiled(original)
    means = []
    for choice in ("frozen", "train"):
        options = recover(distill={}, batchnorm=choice, steps=20)
        found = RecoverEager(**options).run(model, context).model
        means.append(found.module.norm.running_mean)  # type: ignore[union-attr]
    start = model.module.norm.running_mean  # type: ignore[union-attr]
    assert torch.equal(means[0], start)  # type: ignore[arg-type]
    assert not torch.equal(means[1], start)  # type: ignore[arg-type]


def test_accumulation_is_the_mean_of_its_pieces(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    sgd = {"sgd": {"lr": 0.1}}
    outputs = []
    for size, pieces in ((240, 1), (60, 4)):
        options = recover(
            distill={},
            steps=1,
            batch_size=size,
            accumulate=pieces,
            optimizer=sgd,
            held_out=0.0625,
            clip_norm=None,
        )
        outputs.append(RecoverEager(**options).run(spoiled(original), context).model)
    # 240 samples are trained on: one batch of all, or four pieces of it. The scale of `mse` is
    # the batch's own, which differs a little between pieces.
    feeds = probe(original)
    a, b = (m.run(feeds)["logits"] for m in outputs)
    moved = np.abs(a - spoiled(original).run(feeds)["logits"]).max()
    assert np.abs(a - b).max() < 0.1 * moved


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"distill": {"hidden": ["block.*"]}}, "matches nothing"),
        ({"distill": {"mask": "gates"}}, "'gates', which no batch has"),
        ({"distill": {"outputs": ["logit"]}}, "matches nothing"),
        ({"task": {"labels": "labels"}}, "'labels', which no batch has"),
        ({"task": {"labels": "x"}}, "don't fit the logits"),
        ({"task": {"labels": "label", "output": "logit"}}, "which is no output"),
        ({"task": {"loss": "data.py:broken"}}, "no scalar tensor"),
        ({"distill": {}, "freeze": ["*"]}, "no parameter to train"),
        ({"distill": {}, "masking": {"input": "z", "share": 0.1}}, "'z', which no batch has"),
        ({"distill": {}, "batches": "data.py:other_names"}, "no entry 'x'"),
        ({"distill": {}, "batches": "data.py:one"}, "none can be held out"),
        ({"distill": {}, "batches": "data.py:infinite"}, "the loss is nan"),
        (
            {"distill": {}, "clip_activations": {"modules": ["bloks"], "limit": 1}},
            "matches nothing",
        ),
        ({"distill": {}, "optimizer": {"sgd": {"lr": 1e-12}}}, "made nothing better"),
    ],
)
def test_what_does_not_fit_is_named(
    world: tuple[Eager, PassContext], options: dict[str, Any], words: str
) -> None:
    original, context = world
    model = spoiled(original)
    untouched = Untouched(model.module)
    with pytest.raises((PassError, DataError, ModelError), match=words):
        RecoverEager(**recover(**{"steps": 3, **options})).run(model, context)
    untouched.check()


def test_a_model_that_lost_nothing_is_refused(world: tuple[Eager, PassContext]) -> None:
    original, context = world
    with pytest.raises(PassError, match="nothing to bring back"):
        RecoverEager(**recover(distill={})).run(original.copy(), context)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "nothing to learn from"),
        ({"distill": {}, "epochs": 1, "steps": 1}, "exactly one of"),
        ({"distill": {"temperature": 2}}, "for loss: kl"),
        ({"distill": {"weight": 0}}, "nothing to learn"),
        ({"task": {"loss": "a.py:b", "labels": "y"}}, "not both"),
        ({"task": {"loss": "a.py:b", "label_smoothing": 0.1}}, "belongs to `labels`"),
        ({"task": {"loss": "a.py:b"}, "sampling": "loss-weighted"}, "loss per sample"),
        ({"distill": {}, "schedule": "constant", "periods": 2}, "schedule: cosine"),
        ({"distill": {}, "quantize": {}, "dropout": True}, "without dropout"),
        ({"distill": {}, "clip_activations": {"modules": ["a"]}}, "exactly one of"),
        ({"distill": {}, "validate_with": "a.py:b"}, "name one of them"),
    ],
)
def test_options_that_contradict_each_other(options: dict[str, Any], words: str) -> None:
    given = {"batches": "a.py:b", **({} if "epochs" in options else {"steps": 5}), **options}
    with pytest.raises(ValidationError, match=words):
        RecoverEager(**given)


def test_quantization_aware_training_beats_quantizing_at_four_bits(
    world: tuple[Eager, PassContext],
) -> None:
    context, original = world[1], of_layer_norm()
    context = replace(context, original=lambda: original)
    untouched = Untouched(original.module)

    def evaluate(run: Any) -> Metrics:
        error = 1 - cosine(run(probe(original)), original.run(probe(original)))
        return {"error": {"value": error, "higher_is_better": False}}

    options = recover(
        distill={"hidden": ["blocks.1"], "hidden_weight": 0.01},
        steps=300,
        optimizer={"adamw": {"lr": 3e-3, "weight_decay": 0.0}},
        quantize={"bits": 4, "per_channel": False},
    )
    found = RecoverQuantized(**options).run(original, replace(context, evaluate=evaluate))
    untouched.check()
    assert found.recovery is not None
    # What was trained is what is lowered, to the last bit of its scales.
    after = found.recovery.metric_after["error"].value
    assert after == pytest.approx(evaluate(found.model.run)["error"]["value"], abs=1e-6)
    assert after < found.recovery.metric_before["error"].value

    def calibration() -> Iterator[Feeds]:
        (batch,) = _batches()
        for row in batch["x"][:64]:
            yield {"x": row[None]}

    plain = QuantizeExported(method="static", bits=4, per_channel=False, symmetric=False)
    ptq = plain.run(
        Export().run(original, context).model,
        make_context(context.work, original.signature, calibration),
    )
    feeds = probe(original)
    errors = [1 - cosine(one.model.run(feeds), original.run(feeds)) for one in (ptq, found)]
    assert errors[1] < errors[0] / 1.5, errors
    weights = [v for v in found.model.program.state_dict.values() if v.dtype == torch.int8]
    weights += [
        v
        for v in found.model.program.constants.values()
        if isinstance(v, torch.Tensor) and v.dtype == torch.int8
    ]
    assert len(weights) == 5
    assert all(int(v.min()) >= -8 and int(v.max()) <= 7 for v in weights)
    assert found.sites.changed == 5
    assert list(found.model.run(feeds)) == ["logits"], "hidden states are not part of the model"
    for batch in (1, 3, 512):
        assert found.model.run(example(original.signature, {"batch": batch}))["logits"].shape == (
            batch,
            CLASSES,
        )


def test_what_shall_stay_in_float_does(world: tuple[Eager, PassContext]) -> None:
    context, original = world[1], of_layer_norm()
    context = replace(context, original=lambda: original)
    options = recover(distill={}, steps=5, quantize={"keep": ["head"]})
    found = RecoverQuantized(**options).run(original, context)
    assert found.sites.changed == 4
    assert [reason for _, reason in found.sites.skipped] == ["kept by the spec"]
    copy_module(original.module)  # the original is still one that can be copied


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.norm(self.first(x))).mean((2, 3)))


@pytest.mark.parametrize(
    ("freeze", "trained"),
    [
        ([], 8 * 3 * 9 + 8 + 8 * CLASSES + CLASSES),
        (["head.*"], 8 * 3 * 9 + 8),
    ],
)
def test_what_normalization_was_folded_into_is_trained_too(
    tmp_path: Path, freeze: list[str], trained: int
) -> None:
    (tmp_path / "data.py").write_text(
        "import numpy as np\ndef batches():\n    yield {'x': np.random.default_rng(0)"
        ".standard_normal((64, 3, 8, 8)).astype(np.float32)}\n"
    )
    torch.manual_seed(0)
    model = make_eager(
        Convolutions(), {"x": tensor("batch", 3, 8, 8)}, {"batch": dim(1, 4, 64)}, ["logits"]
    )
    (tmp_path / "steps").mkdir()
    context = replace(
        make_context(tmp_path / "steps", model.signature), base=tmp_path, original=lambda: model
    )
    options = recover(distill={}, steps=5, batch_size=16, quantize={}, freeze=freeze)
    found = RecoverQuantized(**options).run(model, context)
    assert found.recovery is not None
    assert found.recovery.trained_parameters == trained
    assert found.sites.changed == 2
