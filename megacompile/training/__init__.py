"""A training step as data: the form, its recipe, batches, memory, and checkpoints.

Most files load torch; other rooms import those by their own names, where they need them.
"""

from megacompile.training.context import Origin, TrainingContext, hook_hashes
from megacompile.training.data.lmdb_format import DATABASE
from megacompile.training.data.writing import write_source
from megacompile.training.files import carry_source, check_stored, read_record
from megacompile.training.form import Training
from megacompile.training.recipe import (
    BlockCost,
    Checkpoint,
    Compile,
    Compression,
    Distribute,
    Offload,
    Policy,
    Recipe,
    Scaler,
)
from megacompile.training.solver import Problem, Way, cheapest_within, lowest_peak, worst_moment

__all__ = [
    "DATABASE",
    "BlockCost",
    "Checkpoint",
    "Compile",
    "Compression",
    "Distribute",
    "Offload",
    "Origin",
    "Policy",
    "Problem",
    "Recipe",
    "Scaler",
    "Training",
    "TrainingContext",
    "Way",
    "carry_source",
    "cheapest_within",
    "check_stored",
    "hook_hashes",
    "lowest_peak",
    "read_record",
    "worst_moment",
    "write_source",
]
