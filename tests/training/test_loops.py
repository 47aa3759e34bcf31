"""The step in other people's loops: Lightning's Trainer and transformers' Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import megacompile
from megacompile.training.step import TrainingStep
from tests.builder.training_world import build, spec_of
from tests.training.toy import digits

pytest.importorskip("sklearn")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loops")
    path = spec_of(folder, passes=["mixed-precision"])
    found = build(folder, path).bundle
    assert found is not None
    return found


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    """The digits to train on, one by one."""

    def __init__(self) -> None:
        [self.data] = digits().batches()

    def __len__(self) -> int:
        return len(self.data["label"])

    def __getitem__(self, index: int) -> dict[str, Any]:
        one = {name: np.asarray(values[index]) for name, values in self.data.items()}
        return {name: torch.from_numpy(value) for name, value in one.items()}


def accuracy(module: torch.nn.Module) -> float:
    """On the images held out."""
    module = module.eval()
    with torch.no_grad():
        scores = digits().evaluate(lambda image: module(torch.from_numpy(image)).numpy())
    return float(scores["accuracy"].mean())


@pytest.mark.slow
def test_a_loop_of_ones_own(bundle: Path) -> None:
    step = megacompile.training_step(bundle)
    loader = torch.utils.data.DataLoader(Samples(), batch_size=16, shuffle=True, drop_last=True)
    for _ in range(2):
        for batch in loader:
            step.step(batch)
    assert accuracy(step.module) > 0.7, "chance is 0.1"


@pytest.mark.slow
def test_lightning(bundle: Path, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")
    step = megacompile.training_step(bundle)

    class Wrapped(lightning.LightningModule):  # type: ignore[misc, name-defined]
        """Manual optimization: the step does all of it."""

        def __init__(self, step: TrainingStep) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.module, self.step = step.module, step
            self.losses: list[float] = []

        def training_step(self, batch: Any, index: int) -> None:
            self.losses.append(self.step.step(batch).loss)

        def configure_optimizers(self) -> Any:
            return self.step.optimizer

    wrapped = Wrapped(step)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        default_root_dir=str(tmp_path),
    )
    loader = torch.utils.data.DataLoader(Samples(), batch_size=16, shuffle=True, drop_last=True)
    trainer.fit(wrapped, loader)
    assert np.mean(wrapped.losses[-10:]) < 0.6 * np.mean(wrapped.losses[:10])
    assert accuracy(step.module) > 0.7


@pytest.mark.slow
def test_transformers_trainer(bundle: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    step = megacompile.training_step(bundle)

    class Own(transformers.Trainer):  # type: ignore[misc, name-defined]
        """The loss is the step's, forward and precision included; the loop, the accumulation and
        the clipping are the Trainer's."""

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any
        ) -> Any:
            return step.compute_loss(inputs)

    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        per_device_train_batch_size=16,
        num_train_epochs=2,
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        remove_unused_columns=False,
        label_names=["label"],
        disable_tqdm=True,
        max_grad_norm=1.0,
        lr_scheduler_type="constant",
    )
    schedule = torch.optim.lr_scheduler.ConstantLR(step.optimizer, factor=1.0)
    trainer = Own(
        model=step.module,
        args=arguments,
        train_dataset=Samples(),
        data_collator=torch.utils.data.default_collate,
        optimizers=(step.optimizer, schedule),
    )
    result = trainer.train()
    assert result.training_loss < 1.5
    assert accuracy(step.module) > 0.7
