"""A training form on disk: weights, a JSON record, and the user's source. No pickle.

The module is built again by the user's own code, so its structure is never stored; weights lie
in a safetensors file, each tied storage once.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megacompile.errors import ModelError, PassError
from megacompile.models import Binding
from megacompile.spec import Train
from megacompile.system import hooks, python_sources
from megacompile.training.context import Origin
from megacompile.training.recipe import Recipe

if TYPE_CHECKING:
    import torch

WEIGHTS, RECORD, SOURCE = "weights.safetensors", "training.json", "source"


def save_training(
    folder: Path, module: torch.nn.Module, binding: Binding, recipe: Recipe, origin: Origin
) -> None:
    """Write a form's parts into an empty folder."""
    from megacompile.models.torchmodules import write_tensors

    tensors, aliases = unique_state(module)
    write_tensors(tensors, folder / WEIGHTS)
    record = {
        "recipe": recipe.model_dump(mode="json"),
        "aliases": aliases,
        "binding": {"names": dict(binding.names), "positional": sorted(binding.positional)},
        "model": origin.model,
        "base": str(origin.base),
        "seed": origin.seed,
        "train": origin.train.model_dump(mode="json"),
    }
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")


def load_training(folder: Path) -> tuple[torch.nn.Module, Binding, Recipe, Origin]:
    """The parts of what `save_training` wrote; the module is built by the user's code and then
    filled.

    Raises:
        ModelError: the code builds another model than the stored weights are of.
    """
    from megacompile.models.torchmodules import copy_module
    from megacompile.training.ties import apply_ties

    record = read_record(folder)
    base = Path(record["base"])
    base = base if base.is_absolute() else folder / base
    recipe = Recipe.model_validate(record["recipe"])
    build = hooks.load(record["model"], base)
    module = copy_module(hooks.call(f"model '{record['model']}'", build)).eval()
    apply_ties(module, recipe.ties)
    fill(module, folder / WEIGHTS, record["aliases"])
    origin = Origin(record["model"], base, Train.model_validate(record["train"]), record["seed"])
    bound = record["binding"]
    return module, Binding(bound["names"], frozenset(bound["positional"])), recipe, origin


def read_record(folder: Path) -> dict[str, Any]:
    """The JSON record of a stored form: its recipe, references and ties of storage."""
    found: dict[str, Any] = json.loads((folder / RECORD).read_text())
    return found


def check_stored(pass_name: str, before: torch.nn.Module, after: torch.nn.Module) -> None:
    """What was verified must be what is stored: weights and ties are, a module's class, its hooks
    and the settings of torch's own modules are not.

    Raises:
        PassError: a pass changed one of these.
    """
    one, other = _arrangement(before), _arrangement(after)
    changed = next((name for name in {**one, **other} if one.get(name) != other.get(name)), None)
    if changed is None:
        return
    raise PassError(
        what=f"pass '{pass_name}' changes the module '{changed or 'itself'}'",
        expected="a changed recipe: of the module only weights are stored",
        got="another class, hook, forward or setting, which the bundle wouldn't have",
        remedy="let the pass take Eager, which comes before the training step",
        audience="pass author",
    )


def _arrangement(module: torch.nn.Module) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for name, one in module.named_modules(remove_duplicate=False):
        values = vars(one)
        hooks_of = [len(values[key]) for key in sorted(values) if key.endswith("_hooks")]
        found[name] = (type(one), "forward" in values, hooks_of, _settings(one))
    return found


def _settings(module: torch.nn.Module) -> dict[str, Any]:
    """The settings of one of torch's own modules, but for its mode; of others nothing."""
    if not type(module).__module__.startswith("torch.nn"):
        return {}
    plain = (bool, int, float, str, tuple)
    values = {key: value for key, value in vars(module).items() if isinstance(value, plain)}
    return {key: value for key, value in sorted(values.items()) if key != "training"}


def unique_state(module: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The state dict with each tensor once, and name -> the name that holds its values."""
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in module.state_dict().items():
        one = tensor.detach()
        owner = first.setdefault(_place_of(one) if one.numel() else (name,), name)
        if owner == name:
            tensors[name] = one.cpu().contiguous().clone()
        else:
            aliases[name] = owner
    return tensors, aliases


def _place_of(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor lies in memory and how it looks at it."""
    address = tensor.untyped_storage().data_ptr()
    return (address, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def fill(module: torch.nn.Module, weights: Path, aliases: dict[str, str]) -> None:
    """Load weights into a module of the same structure.

    Raises:
        ModelError: names or shapes differ.
    """
    from safetensors.torch import load_file

    tensors = load_file(str(weights))
    state = {**tensors, **{name: tensors[owner] for name, owner in aliases.items()}}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        lines = str(error).strip().splitlines()
        raise ModelError(
            what="the model's code builds another model than the stored weights are of",
            where=str(weights),
            cause=lines[1].strip() if len(lines) > 1 else lines[0],
            remedy="use the code it was built with, or build again",
        ) from error


def carry_source(folder: Path) -> list[str]:
    """Copy the user's Python files of a stored form beside it and let the record name the copies:
    the form can then be loaded anywhere. Returns remarks.

    Modules of installed packages stay where they are.
    """
    record = read_record(folder)
    base = Path(record["base"])
    places: dict[Path, str] = {}
    notes: list[str] = []
    for holder, key in ((record, "model"), (record["train"], "loss")):
        path, name = hooks.locate(holder[key], base)
        if path is None:
            package = holder[key].partition(":")[0]
            notes.append(f"'{package}' is not carried along: it must be installed")
            continue
        place = places.setdefault(path.parent, str(len(places)))
        for source in python_sources(path):
            target = folder / SOURCE / place / source.name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        holder[key] = f"{SOURCE}/{place}/{path.name}:{name}"
    record["base"] = "."
    (folder / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return notes
