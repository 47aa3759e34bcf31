"""`megacompile schema`: the JSON schema of a spec, with one object per installed pass and
backend."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from megacompile.commands.output import out

NAME = "schema"
HELP = "print the JSON schema of specs, with all installed passes' options"


def add_arguments(parser: ArgumentParser) -> None:
    """It has none."""


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    out(json.dumps(spec_schema(), indent=2))
    return 0


def spec_schema() -> dict[str, Any]:
    """A schema (draft 2020-12) that editors complete from."""
    from megacompile.plan import registry
    from megacompile.spec import Spec

    schema = Spec.model_json_schema(by_alias=True)
    definitions = schema["$defs"]
    passes, backends = {}, {}
    for name in registry.pass_table():
        passes[name] = _options(registry.pass_classes(name, Path())[0], definitions)
    for name in registry.backend_table():
        backends[name] = _options(registry.backend_class(name), definitions)
    definitions["Pass"] = _item(passes, "FILE.py:Class or package.module:Class", own=True)
    definitions["Backend"] = _item(backends, "a backend", own=False)
    for owner in (schema, definitions["Variant"]):
        owner["properties"]["passes"]["items"] = {"$ref": "#/$defs/Pass"}
        _replace_items(owner["properties"]["backends"])
    definitions.pop("Item", None)
    definitions["Dim"] = {"anyOf": [definitions["Dim"], {"type": "integer", "minimum": 1}]}
    definitions["Optimizer"] = _short_optimizer(definitions["Optimizer"])
    training = {"properties": {"workload": {"const": "training"}}, "required": ["workload"]}
    schema["allOf"] = [
        {"if": training, "then": {"required": ["train"]}, "else": {"not": {"required": ["train"]}}}
    ]
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    return schema


def _short_optimizer(options: dict[str, Any]) -> dict[str, Any]:
    """An optimizer by its name alone, too."""
    return {"anyOf": [{"type": "string", "enum": list(options["properties"])}, options]}


def _replace_items(backends: dict[str, Any]) -> None:
    for option in backends.get("anyOf", [backends]):
        if option.get("type") == "array":
            option["items"] = {"$ref": "#/$defs/Backend"}


def _options(model: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """A pass's or backend's options; parts of them join the schema's own definitions, under the
    name of what they are options of."""
    template = f"#/$defs/{model.name}.{{model}}"
    found: dict[str, Any] = model.model_json_schema(by_alias=True, ref_template=template)
    parts = found.pop("$defs", {})
    definitions |= {f"{model.name}.{name}": part for name, part in parts.items()}
    optimizer = f"{model.name}.Optimizer"
    if optimizer in definitions:
        definitions[optimizer] = _short_optimizer(definitions[optimizer])
    found.pop("title", None)
    document = (model.__doc__ or "").strip().splitlines()
    found["description"] = document[0] if document else model.name
    return found


def _item(known: dict[str, dict[str, Any]], label: str, own: bool) -> dict[str, Any]:
    """One entry of a list of passes or backends: a name alone, or a name with options."""
    alone = [name for name, options in known.items() if not options.get("required")]
    names: list[dict[str, Any]] = [{"enum": alone}]
    objects: list[dict[str, Any]] = [
        {
            "type": "object",
            "properties": {name: options},
            "required": [name],
            "additionalProperties": False,
        }
        for name, options in known.items()
    ]
    if own:
        names.append({"type": "string", "pattern": "^.+:.+$", "description": label})
        objects.append(
            {
                "type": "object",
                "patternProperties": {"^.+:.+$": {"type": "object"}},
                "additionalProperties": False,
                "minProperties": 1,
                "maxProperties": 1,
            }
        )
    return {"anyOf": names + objects}
