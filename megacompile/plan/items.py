"""Names and options in a spec -> passes and backends, each checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from megacompile.errors import MegacompileError
from megacompile.plan import registry
from megacompile.plan.backends import Backend
from megacompile.plan.passes import Pass
from megacompile.spec import Item, KeyPath, Loaded, translate


@dataclass(frozen=True)
class PassItem:
    """A pass of the spec after its name and options were checked: one instance per form."""

    label: str
    where: str
    instances: tuple[Pass[Any, Any], ...]


class VariantItems(NamedTuple):
    """A variant of the spec: its passes, the common ones first, and backends with their place."""

    name: str
    passes: list[PassItem]
    backends: list[tuple[Backend, str]]


class Items:
    """Names and options of passes and backends, checked once each, faults with their line."""

    def __init__(self, loaded: Loaded, problems: list[MegacompileError]) -> None:
        self.loaded, self.problems = loaded, problems

    def passes(self, items: list[Item], path: KeyPath) -> list[PassItem]:
        """The passes of a list in the spec, without those that are at fault."""
        found = []
        for index, item in enumerate(items):
            here = (*path, index)
            where = self.loaded.document.where(here)
            try:
                classes = registry.pass_classes(item.name, self.loaded.base)
            except MegacompileError as error:
                error.where = where if error.where is None else error.where
                if error.where != where:
                    error.what = f"{where}: {error.what}"
                self.problems.append(error)
                continue
            instances = self._instances(classes, item, here)
            if instances:
                meant = tuple(one for one in instances if one.is_meant())
                found.append(PassItem(item.name, where, meant))
        return found

    def backends(self, items: list[Item] | None, path: KeyPath) -> list[tuple[Backend, str]]:
        """The backends of a list in the spec with their places, without those at fault."""
        found: list[tuple[Backend, str]] = []
        for index, item in enumerate(items or []):
            here = (*path, index)
            where = self.loaded.document.where(here)
            try:
                cls = registry.backend_class(item.name)
            except MegacompileError as error:
                error.where = where
                self.problems.append(error)
                continue
            found += [(b, where) for b in self._instances([cls], item, here)]
        return found

    def _instances(self, classes: list[Any], item: Item, path: KeyPath) -> list[Any]:
        """Instances of all classes of a name; faults are those of the first class."""
        instances = []
        for number, cls in enumerate(classes):
            try:
                instances.append(cls.model_validate(item.options))
            except ValidationError as error:
                if number == 0:
                    self.problems += translate(error, self.loaded.document, (*path, item.name), cls)
        return instances
