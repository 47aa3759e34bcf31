"""A training bundle as anyone's loop uses it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from megacompile.engines.bundle import ENGINE
from megacompile.engines.loading import checked_manifest
from megacompile.errors import BundleError
from megacompile.models import Signature
from megacompile.training import Training

if TYPE_CHECKING:
    from megacompile.training.step import TrainingStep


def training_step(bundle: str | Path, device: str | None = None) -> TrainingStep:
    """The ready step of a training bundle: module, optimizer and scaler, as the recipe says.

    Each call gives a new step that starts from the bundle's weights. Under `torchrun`, with a
    process group made, a distributed recipe's step is this process's part of it. The model's and
    the loss's source lie in the bundle and are run: load only bundles that you trust.

    Args:
        bundle: the folder, e.g. "build/gpt_train".
        device: where to train; default: what the bundle was built for.

    Raises:
        BundleError: damaged, for other library versions, or no training bundle.
        ModelError: the recipe is for several processes, and they are not there.
    """
    folder = Path(bundle)
    manifest = checked_manifest(folder)
    if manifest["backend"] != "training":
        raise BundleError(
            what="this bundle holds an inference engine, no training step",
            where=str(folder),
            expected="one built with workload: training",
            got=f"backend '{manifest['backend']}'",
            remedy="use megacompile.load()",
        )
    form = Training.load(folder / ENGINE, Signature.from_dict(manifest["signature"]))
    return form.step(device=device or manifest["target"]["device"])
