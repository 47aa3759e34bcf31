"""The specs' JSON schema takes what the reader takes."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
import yaml

from megacompile.commands.schema import spec_schema
from tests.commands.shell import SPECS


def test_the_schema_takes_all_specs_and_is_one() -> None:
    schema = spec_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for path in SPECS:
        data = yaml.safe_load(path.read_text())
        assert [e.message for e in validator.iter_errors(data)] == [], path.name


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("nam", 1),
        ("passes", ["simplfy"]),
        ("passes", [{"quantize": {"metod": "static"}}]),
        ("passes", [{"quantize": {"method": "statik"}}]),
        ("backends", ["openvin"]),
        ("dims", {"batch": {"min": 0, "typical": 1, "max": 1}}),
        ("inputs", {}),
        ("inputs", {"x": {"shape": [1], "dtype": "float31"}}),
        ("seed", -1),
        ("budget", {"cosine": 2}),
        ("workload", "training"),
        ("variants", {"a": {"passes": [{"cast": 3}]}}),
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(key: str, value: Any) -> None:
    data = {
        "name": "a",
        "model": {"onnx": "a.onnx"},
        "inputs": {"x": {"shape": [1]}},
        "backends": ["openvino"],
    }
    validator = jsonschema.Draft202012Validator(spec_schema())
    assert validator.is_valid(data)
    assert not validator.is_valid({**data, key: value})
