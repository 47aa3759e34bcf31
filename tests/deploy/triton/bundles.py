"""Bundles for the tests of Triton: real engines, whatever a race would say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from megacompile.builder.keys import SAMPLES
from megacompile.builder.products import serving_sources
from megacompile.engines.bundle import Contents, write_bundle
from megacompile.engines.loading import here
from megacompile.models.shapes import output_shapes
from megacompile.plan.registry import backend_class
from megacompile.spec.load import load_spec_data
from tests.field import world


def write(folder: Path, data: dict[str, Any]) -> Path:
    """Build the spec's one candidate and write its bundle, as the winner's would be."""
    built = world.build(folder, data, {})
    (backend,) = data["backends"]
    one = backend_class(backend)()
    sets = built.original.input_sets()
    spec = load_spec_data(data, folder).spec
    assert spec is not None
    contents = Contents(
        name=spec.name,
        candidate=f"default/{backend}",
        backend=backend,
        options=one.model_dump(mode="json"),
        precision="float32",
        needs_isa=(),
        engine=built.folder,
        signature=built.run.signature,
        spec=data,
        sample_inputs=sets[0].feeds,
        sample_outputs=built.folder.parent / SAMPLES,
        fingerprint=built.original.fingerprint,
        points=spec.points(),
        libraries=one.libraries,
        outputs=output_shapes(built.run.signature, sets),
        hooks=serving_sources(spec, folder),
    )
    return write_bundle(contents, folder / "build" / spec.name, here())
