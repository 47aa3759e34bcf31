"""A training build from end to end: verdict, report, bundle, and what a user can get wrong."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import megacompile
from megacompile.builder.main import Result
from megacompile.errors import BundleError, DataError, MegacompileError
from megacompile.measure import trainer
from tests.builder.training_world import SPECS, build, spec_of
from tests.training.toy import digits

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("training")
    path = spec_of(
        folder,
        passes=["mixed-precision"],
        budget={"gradient_cosine": 0.9, "metric_drop": 1.0},
        data={"evaluation": {"python": "digits_train.py:evaluate"}},
        train={"batch_size": 64, "steps": 40},
    )
    return folder, build(folder, path)


@pytest.mark.slow
def test_the_report_has_the_training_block(built: tuple[Path, Result]) -> None:
    report = json.loads(built[1].report_path.read_text())
    found = report["training"]
    for side in ("plain", "optimised"):
        assert found[side]["step_ms"]["p50"] > 0
        assert 0 < found[side]["peak_activation_mb"] < found[side]["peak_memory_mb"]
        assert len(found[side]["losses"]) == 40
        assert found[side]["losses"][-1] < found[side]["losses"][0]
        assert found[side]["operators"][0]["ms"] > 0
        assert found[side]["timeline"]
        assert 0 <= found[side]["waiting"] <= 1
        assert found[side]["saved_mb"]["blocks.0"] > 0
    assert found["optimised"]["peak_activation_mb"] < found["plain"]["peak_activation_mb"]
    assert found["memory_ratio"] == pytest.approx(
        found["optimised"]["peak_memory_mb"] / found["plain"]["peak_memory_mb"]
    )
    assert 0.9 < found["gradient"]["cosine_min"] < 1
    assert found["gradient"]["worst"] in dict(digits().build().named_parameters())
    assert found["gradient"]["many"] == 3
    assert found["largest_batch"]["optimised"] > found["largest_batch"]["plain"] > 0
    assert found["recipe"] == {"autocast": "bfloat16"}
    assert "training" not in report["baselines"][0]
    gates = {gate["name"]: gate["passed"] for gate in report["candidates"][0]["gates"]}
    assert gates == {"gradient_cosine": True, "metric_drop": True}
    assert report["baselines"][0]["metric"]["accuracy"]["value"] > 0.3, "chance is 0.1"
    assert report["verdict"] == "improved"


@pytest.mark.slow
def test_the_views_show_it(built: tuple[Path, Result]) -> None:
    folder = built[1].report_path.parent
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    for words in ("The training step", "Memory over the step", "Loss curves", "Top operators"):
        assert words in page
    for words in ("Peak memory of a step", "Worst gradient", "Largest batch"):
        assert words in page
        assert words in text
    events = sorted(p.parent.name for p in (folder / "tensorboard").rglob("*tfevents*"))
    assert events == ["optimised", "plain"]


@pytest.mark.slow
def test_event_files_hold_the_losses(built: tuple[Path, Result]) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = built[1].report_path.parent / "tensorboard" / "optimised"
    events = EventAccumulator(str(folder)).Reload().Scalars("loss")
    losses = json.loads(built[1].report_path.read_text())["training"]["optimised"]["losses"]
    assert [e.value for e in events] == pytest.approx(losses, rel=1e-6)
    assert [e.step for e in events] == list(range(40))


@pytest.mark.slow
def test_a_second_build_computes_nothing_again(built: tuple[Path, Result]) -> None:
    folder, first = built
    again = build(folder, folder / "spec.yaml")
    assert [step.cached for step in again.report.candidates[0].steps] == [True, True]
    before, after = first.report.training, again.report.training
    assert before is not None
    assert after is not None
    assert after.optimised.losses == before.optimised.losses


@pytest.mark.slow
def test_the_bundle_is_data_and_source_and_works_elsewhere(
    built: tuple[Path, Result], tmp_path: Path
) -> None:
    bundle = tmp_path / "elsewhere"
    assert built[1].bundle is not None
    shutil.copytree(built[1].bundle, bundle)
    names = {str(p.relative_to(bundle)) for p in bundle.rglob("*") if p.is_file()}
    assert names == {
        "manifest.json",
        "spec.json",
        "sample-inputs.npz",
        "sample-outputs.npz",
        "engine/training.json",
        "engine/weights.safetensors",
        "engine/source/0/digits_train.py",
    }
    assert str(built[0]) not in (bundle / "engine/training.json").read_text()
    code = """
import sys, megacompile, torch
step = megacompile.training_step(sys.argv[1])
from sklearn.datasets import load_digits
data = load_digits()
batch = {"image": torch.tensor(data.images[:64] / 16, dtype=torch.float32),
         "label": torch.tensor(data.target[:64])}
losses = [step.step(batch).loss for _ in range(20)]
assert losses[-1] < 0.8 * losses[0], losses
module = megacompile.load(sys.argv[1])
assert isinstance(module, torch.nn.Module) and not module.training
print(sorted(type(m).__name__ for m in module.children()))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(bundle)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "ModuleList" in done.stdout


@pytest.mark.slow
def test_the_module_answers_as_the_original(built: tuple[Path, Result]) -> None:
    bundle = built[1].bundle
    assert bundle is not None
    module = megacompile.load(bundle)
    image = torch.rand(3, 8, 8)
    torch.testing.assert_close(module(image), digits().build().eval()(image))
    from megacompile.engines.bundle import load_compiled

    array = load_compiled(bundle)(image=image.numpy())
    np.testing.assert_allclose(array, module(image).detach().numpy(), rtol=1e-5)


@pytest.mark.slow
def test_a_damaged_or_foreign_bundle_is_refused(built: tuple[Path, Result], tmp_path: Path) -> None:
    assert built[1].bundle is not None
    shutil.copytree(built[1].bundle, tmp_path / "damaged")
    source = tmp_path / "damaged/engine/source/0/digits_train.py"
    source.write_text(source.read_text() + "\nprint('changed')\n")
    with pytest.raises(BundleError, match="was changed after the bundle was written"):
        megacompile.training_step(tmp_path / "damaged")


@pytest.mark.slow
def test_two_files_of_one_name_from_two_folders(tmp_path: Path) -> None:
    """The loss lies elsewhere, in a file of the same name that imports a sibling."""
    path = spec_of(tmp_path, train={"loss": "more/digits_train.py:loss", "verify_steps": 1})
    (tmp_path / "more").mkdir()
    (tmp_path / "more/weighting.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "more/digits_train.py").write_text(
        "import torch.nn.functional as F\nfrom weighting import FACTOR\n"
        "def loss(outputs, batch):\n    return FACTOR * F.cross_entropy(outputs, batch['label'])\n"
    )
    result = build(tmp_path, path)
    assert result.report.candidates[0].status == "built"
    found = next((tmp_path / "cache").rglob("source/1"), None)
    assert found is not None
    assert sorted(p.name for p in found.iterdir()) == ["digits_train.py", "weighting.py"]


PASSES = """
from typing import ClassVar
import copy
import torch
from megacompile import Effect, Fact, Pass, PassContext, PassResult, Sites, Training

class Base(Pass[Training, Training]):
    effect: ClassVar[Effect] = Effect.EXACT
    requires: ClassVar[frozenset[Fact]] = frozenset()
    provides: ClassVar[frozenset[Fact]] = frozenset()
    invalidates: ClassVar[frozenset[Fact]] = frozenset()
    def result(self, model):
        sites = Sites("step"); sites.change()
        return PassResult(model, sites)

class Liar(Base):
    name: ClassVar[str] = "liar"
    def run(self, model: Training, ctx: PassContext) -> PassResult[Training]:
        return self.result(model.with_recipe(model.recipe.edited(autocast="bfloat16")))

class Honest(Base):
    name: ClassVar[str] = "honest"
    def run(self, model: Training, ctx: PassContext) -> PassResult[Training]:
        from megacompile.training.recipe import Checkpoint
        wrapped = tuple(Checkpoint(module=f"blocks.{n}") for n in range(6))
        return self.result(model.with_recipe(model.recipe.edited(checkpoints=wrapped)))

class Detacher(Base):
    effect: ClassVar[Effect] = Effect.LOSSY
    name: ClassVar[str] = "detacher"
    def run(self, model: Training, ctx: PassContext) -> PassResult[Training]:
        module = copy.deepcopy(model.module)
        module.head.register_forward_hook(lambda one, args, output: output.detach() + 0 * output)
        return self.result(Training(module, model.signature, model.binding, model.recipe,
                                    model.origin))

class Meddler(Base):
    name: ClassVar[str] = "meddler"
    def run(self, model: Training, ctx: PassContext) -> PassResult[Training]:
        module = copy.deepcopy(model.module)
        with torch.no_grad():
            module.head.weight.mul_(1.5)
        return self.result(Training(module, model.signature, model.binding, model.recipe,
                                    model.origin))
"""


def variants(tmp_path: Path, *names: str, **changes: Any) -> Path:
    (tmp_path / "own.py").write_text(PASSES)
    passes = [f"own.py:{name}" for name in names]
    return spec_of(tmp_path, passes=passes, **changes)


@pytest.mark.slow
def test_the_pass_that_breaks_the_step_is_named(tmp_path: Path) -> None:
    found = build(tmp_path, variants(tmp_path, "Honest", "Liar")).report.candidates[0]
    assert found.status == "failed"
    assert found.failed_step == "liar"
    assert "'liar' broke its promise about the training step" in str(found.reason)


@pytest.mark.slow
def test_without_looking_at_each_step_bisection_finds_it(tmp_path: Path) -> None:
    path = variants(tmp_path, "Honest", "Liar")
    found = build(tmp_path, path, verify_each=False).report.candidates[0]
    assert found.status == "failed"
    assert "'liar' broke its promise" in str(found.reason)
    assert "bisection" in str(found.reason)


@pytest.mark.slow
def test_a_pass_that_changes_weights_is_named(tmp_path: Path) -> None:
    found = build(tmp_path, variants(tmp_path, "Meddler")).report.candidates[0]
    assert found.status == "failed"
    assert "'meddler' broke its promise" in str(found.reason)


@pytest.mark.slow
def test_a_pass_whose_change_would_not_be_stored_is_named(tmp_path: Path) -> None:
    found = build(tmp_path, variants(tmp_path, "Detacher")).report.candidates[0]
    assert found.status == "failed"
    assert "pass 'detacher' changes the module 'head'" in str(found.reason)


@pytest.mark.slow
def test_a_budget_that_is_not_met_says_by_how_much(tmp_path: Path) -> None:
    result = build(tmp_path, variants(tmp_path, "Honest", budget={"peak_memory": 0.1}))
    assert result.report.verdict == "outside_budget"
    assert result.exit_code == 3
    assert result.bundle is None
    assert "peak_memory" in result.report.sentence
    assert "limit 0.1" in result.report.sentence
    [gate] = result.report.candidates[0].gates
    assert "MB" in str(gate.note)


DIES = """
import os
import torch
from digits_train import _digits
class Images(torch.utils.data.Dataset):
    calls = 0
    def __init__(self):
        self.images, self.labels = _digits()
    def __len__(self):
        return len(self.labels)
    def __getitem__(self, index):
        self.calls += 1
        if self.calls > 16 * 10:
            os._exit(3)
        return {"image": self.images[index], "label": self.labels[index]}
def batches():
    return Images()
"""


@pytest.mark.slow
def test_a_worker_that_dies_during_the_measured_run(tmp_path: Path) -> None:
    """All went well until then; without the plain run there is nothing to compare with."""
    (tmp_path / "data.py").write_text(DIES)
    path = spec_of(
        tmp_path,
        passes=["mixed-precision"],
        train={"batches": "data.py:batches", "workers": 1, "steps": 30},
    )
    with pytest.raises(DataError, match="a worker process of") as caught:
        build(tmp_path, path)
    assert caught.value.exit_code == 2


SLEEPS = (
    DIES.replace("self.calls > 16 * 10", "index < 0")
    .replace("        return {", "        time.sleep(0.005)\n        return {")
    .replace("import os", "import os, time")
)


@pytest.mark.slow
def test_lmdb_and_slow_data_from_end_to_end(tmp_path: Path) -> None:
    """The digits behind a slow Dataset, and the same digits out of LMDB."""
    (tmp_path / "data.py").write_text(SLEEPS.replace("sleep(0.005)", "sleep(0.0)"))
    shutil.copyfile(SPECS / "digits_train.py", tmp_path / "digits_train.py")
    command = [
        sys.executable,
        "-m",
        "megacompile",
        "write-lmdb",
        f"{tmp_path}/data.py:batches",
        str(tmp_path / "digits"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "1,797 samples" in done.stdout
    assert "image: float32 [8, 8]" in done.stdout

    (tmp_path / "data.py").write_text(SLEEPS)
    curves, reports = [], []
    for batches in ("lmdb:digits", "data.py:batches"):
        path = spec_of(tmp_path, passes=["mixed-precision"], train={"batches": batches})
        result = build(tmp_path, path)
        assert result.report.training is not None
        curves.append(result.report.training.plain.losses)
        reports.append((result.report.training, result.report_path))
    assert curves[0] == curves[1], "the same samples in the same order"
    slow, place = reports[1]
    assert slow.optimised.waiting is not None
    assert slow.optimised.waiting > 0.3, "16 samples sleep for 80 ms"
    assert slow.optimised.waiting_ms is not None
    assert slow.optimised.waiting_ms > 75
    assert slow.optimised.data_start_ms is not None
    assert slow.waiting_remedy is not None
    assert "`workers: 2`" in slow.waiting_remedy
    found = json.loads(place.read_text())["training"]
    assert found["optimised"]["waiting_ms"] == slow.optimised.waiting_ms
    for name in ("report.md", "report.html"):
        text = (place.parent / name).read_text()
        assert "Data: a step waits" in text
        assert "to do: load it with" in text


LOSS = "import torch\nimport torch.nn.functional as F\ndef loss(outputs, batch):\n    "
CASES: dict[str, tuple[dict[str, Any], dict[str, str], list[str]]] = {
    "a loss per sample": (
        {},
        {"loss.py": LOSS + "return F.cross_entropy(outputs, batch['label'], reduction='none')"},
        ["loss.py:loss", "no scalar", "shape [8]"],
    ),
    "a number": ({}, {"loss.py": LOSS + "return 3.0"}, ["no scalar", "float"]),
    "a loss without the model": (
        {},
        {"loss.py": LOSS + "return torch.zeros(())"},
        ["no scalar", "without a gradient"],
    ),
    "NaN at the first step": (
        {},
        {"loss.py": LOSS + "return (outputs * float('nan')).mean()"},
        ["is nan at the first"],
    ),
    "a loss that raises": (
        {},
        {"loss.py": LOSS + "return batch['lable'].sum()"},
        ["loss.py:4", "KeyError"],
    ),
    "parameters without a gradient": (
        {},
        {
            "loss.py": LOSS + "return outputs.detach().mean() + 0 * outputs.sum()",
            "digits_train.py": "        self.unused = nn.Linear(3, 4)\n",
        },
        ["2 parameters get no gradient: unused.weight, unused.bias"],
    ),
    "another dtype than declared": (
        {"train": {"batches": "data.py:batches"}},
        {
            "data.py": "import numpy as np\ndef batches():\n"
            "    yield {'image': np.zeros((16, 8, 8)), 'label': np.zeros(16, np.int64)}\n"
        },
        ["inputs.image", "float32", "float64"],
    ),
    "another size than declared": (
        {"train": {"batches": "data.py:batches"}},
        {
            "data.py": "import numpy as np\ndef batches():\n"
            "    image = np.zeros((16, 9, 8), np.float32)\n"
            "    yield {'image': image, 'label': np.zeros(16, np.int64)}\n"
        },
        ["inputs.image", "[16, 9, 8]"],
    ),
    "batches without a seed": (
        {"train": {"batches": "data.py:batches"}},
        {
            "data.py": "import numpy as np\ndef batches():\n    yield {'image': "
            "np.random.default_rng().random((16, 8, 8), np.float32), "
            "'label': np.zeros(16, np.int64)}\n"
        },
        ["other batches when it is started again", "another 'image'", "seed"],
    ),
    "a loss that draws its own numbers": (
        {},
        {"loss.py": "import random\n" + LOSS + "return random.random() * outputs.mean()"},
        ["gives another loss when it is taken again"],
    ),
    "a forward that raises in training": (
        {},
        {
            "digits_train.py": "        self.register_forward_pre_hook(\n            "
            "lambda m, a: None if 1 / (not m.training) else None)\n"
        },
        ["digits_train.py", "the plain step with loss"],
    ),
    "a server": ({"deploy": {"triton": {}}}, {}, ["`deploy` serves inference engines"]),
    "a pass on engines": (
        {"passes": [{"quantize": {"method": "dynamic"}}]},
        {},
        ["passes[0]", "'quantize' can't run in workload 'training'"],
    ),
    "a data worker that dies": (
        {"train": {"batches": "data.py:batches", "workers": 1}},
        {
            "data.py": "import os\nclass Images:\n    def __len__(self):\n        return 20\n"
            "    def __getitem__(self, index):\n        os._exit(3)\n"
            "batches = Images()\n"
        },
        ["train.workers", "a worker process of train.batches 'data.py:batches' died", "workers: 0"],
    ),
    "a sample that raises in a worker": (
        {"train": {"batches": "data.py:batches", "workers": 1}},
        {
            "data.py": "class Images:\n    def __len__(self):\n        return 20\n"
            "    def __getitem__(self, index):\n        return {'image': images[index]}\n"
            "batches = Images()\n"
        },
        ["data.py:5", "NameError", "images"],
    ),
    "no such loss": ({"train": {"loss": "digits_train.py:lost"}}, {}, ["lost", "did you mean"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said_before_anything_is_built(case: str, tmp_path: Path) -> None:
    changes, files, words = CASES[case]
    given = dict(changes)
    if "loss.py" in files:
        given["train"] = {"loss": "loss.py:loss", **given.get("train", {})}
    path = spec_of(tmp_path, **given)
    for name, text in files.items():
        if name == "digits_train.py":
            whole = (tmp_path / name).read_text()
            text = whole.replace("        self.head = ", text + "        self.head = ")
        (tmp_path / name).write_text(text)
    with pytest.raises(MegacompileError) as caught:
        build(tmp_path, path)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "report").exists()


def test_what_the_target_cannot_do_is_said_before_anything_runs(tmp_path: Path) -> None:
    path = spec_of(
        tmp_path,
        target={"isa": ["avx2"]},
        passes=[{"mixed-precision": {"dtype": "float16"}}, {"offload-activations": {}}],
    )
    with pytest.raises(MegacompileError) as caught:
        build(tmp_path, path)
    for words in ("does not compute in float16", "bfloat16", "activations of a CPU", "passes"):
        assert words in str(caught.value)
    assert not (tmp_path / "report").exists()


@pytest.fixture
def request_of(built: tuple[Path, Result], tmp_path: Path) -> dict[str, Any]:
    """What the measuring worker is asked to load."""
    from megacompile.measure.original import read_record
    from megacompile.plan.backends import Machine
    from megacompile.spec import load_spec
    from megacompile.system.cache import Cache

    folder, _ = built
    records = Cache(folder / "cache").root.rglob("original.json")
    loaded = load_spec(folder / "spec.yaml")
    assert loaded.spec is not None
    return {
        "operation": "load",
        "base": str(loaded.base),
        "folder": None,
        "spec": loaded.spec.model_dump(mode="json", by_alias=True, exclude_unset=True),
        "machine": vars(Machine("cpu", 2, ())),
        "original": read_record(next(records).parent).to_dict(),
    }


class Interrupted(Exception):
    pass


def run_curve(request: dict[str, Any], folder: Path, stop: int | None = None) -> dict[str, Any]:
    def send(event: dict[str, Any]) -> None:
        if stop is not None and event.get("done") == stop:
            raise Interrupted

    made = trainer._Trainer(request, send)
    return made.curve({"folder": str(folder), "key": "k"})


@pytest.mark.slow
def test_an_interrupted_run_goes_on(
    request_of: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "KEEP_SECONDS", 0.0)
    whole = run_curve(request_of, tmp_path / "whole")
    assert whole["continued"] == 0
    with pytest.raises(Interrupted):
        run_curve(request_of, tmp_path / "run", stop=25)
    assert (tmp_path / "run/checkpoint-24").is_dir()
    rest = run_curve(request_of, tmp_path / "run")
    assert rest["continued"] == 24
    assert rest["losses"] == whole["losses"]
    assert rest["metrics"] == whole["metrics"]
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_damaged_checkpoint_is_passed_over_and_named(
    request_of: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "KEEP_SECONDS", 0.0)
    with pytest.raises(Interrupted):
        run_curve(request_of, tmp_path / "run", stop=25)
    file = tmp_path / "run/checkpoint-24/tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    found = run_curve(request_of, tmp_path / "run")
    assert found["continued"] == 23
    assert "checkpoint-24" in found["note"]
    assert "checkpoint-23 is used" in found["note"]
    assert len(found["losses"]) == 40


@pytest.mark.slow
def test_the_same_command_under_torchrun(tmp_path: Path) -> None:
    path = spec_of(
        tmp_path,
        passes=[{"distribute": {"strategy": "ddp"}}],
        train={"verify_steps": 2, "steps": 3},
    )
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "localhost:0",
        "-m",
        "megacompile",
        "build",
        str(path),
        "--build-dir",
        str(tmp_path / "build"),
        "--report-dir",
        str(tmp_path / "report"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    report = json.loads((tmp_path / "report/report.json").read_text())
    [candidate] = report["candidates"]
    assert candidate["status"] == "built", (candidate["reason"], done.stderr[-3000:])
    found = candidate["training"]["distribute"]
    assert found["processes"] == 2
    assert len(found["state_mb_by_rank"]) == 2


def test_the_specs_of_training_plan() -> None:
    from megacompile.builder.main import resolve_target
    from megacompile.plan.planner import make_plan
    from megacompile.spec import load_spec

    plan = make_plan(load_spec(SPECS / "digits_train.yaml"), resolve_target)
    assert [step.pass_.name for step in plan.candidates[0].steps] == ["training-step", "compile"]
    assert plan.baselines == ()
