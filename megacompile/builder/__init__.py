"""The main job as named steps: candidates built in processes of their own, judged, written down."""

from megacompile.builder import judge
from megacompile.builder.candidates import CANDIDATE, request_of
from megacompile.builder.ceiling import machine_ceilings
from megacompile.builder.inspection import inspect_original, original_key
from megacompile.builder.job import Options
from megacompile.builder.keys import keys_of
from megacompile.builder.main import (
    EXIT_CODES,
    Result,
    build,
    make_job,
    quantized_source,
    resolve_target,
)

__all__ = [
    "CANDIDATE",
    "EXIT_CODES",
    "Options",
    "Result",
    "build",
    "inspect_original",
    "judge",
    "keys_of",
    "machine_ceilings",
    "make_job",
    "original_key",
    "quantized_source",
    "request_of",
    "resolve_target",
]
