"""Step 1: the original model, looked at in a process of its own."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Protocol

from megacompile.builder.job import Job
from megacompile.builder.keys import own_hash, versions
from megacompile.measure import Original, read_record
from megacompile.models import source_path
from megacompile.spec import Spec
from megacompile.system import file_sha256, hooks, key_of, sources_hash

INSPECTION = "megacompile.builder.worker:serve_inspection"
# The parts of a spec that the original's record depends on, beside `train` where there is one.
DESCRIBED = ("model", "dims", "inputs", "outputs", "data", "benchmark", "seed")


class Described(Protocol):
    """What a job and a mere plan have in common."""

    @property
    def spec(self) -> Spec: ...

    @property
    def base(self) -> Path: ...

    @property
    def spec_data(self) -> dict[str, Any]: ...


def original_key(job: Described) -> str:
    """What the original depends on, as far as can be told without loading it. Whether it is
    still the same model is confirmed by the worker that loads it as a baseline."""
    path = source_path(job.spec, job.base)
    source: Any = None
    if path is not None and path.suffix == ".py":
        source = sources_hash(path)
    elif path is not None and job.spec.model.kind == "onnx":
        from megacompile.models import onnxfile

        source = onnxfile.fingerprint(path)  # with its data files
    elif path is not None:
        source = file_sha256(path)
    data = job.spec.data
    hooks = [_hook_hash(job, one.python) for one in (data.calibration, data.evaluation) if one]
    if job.spec.train is not None:
        from megacompile.training import hook_hashes

        hooks += hook_hashes(job.spec.train, job.base)
    described = {part: job.spec_data.get(part) for part in DESCRIBED}
    if job.spec_data.get("train"):
        described["train"] = job.spec_data["train"]
    libraries = versions(["torch", "onnx", "onnxruntime"])
    return key_of("inspection", own_hash(), str(job.base), source, hooks, described, libraries)


def _hook_hash(job: Described, reference: str) -> str:
    path = hooks.locate(reference, job.base)[0]
    return sources_hash(path) if path else reference


def inspect_original(job: Job) -> tuple[Original, bool]:
    """The original's record, and whether it is that of an earlier build.

    Raises:
        MegacompileError: the model can't be loaded, or can't be trusted.
    """
    key = original_key(job)
    entry = job.cache.get(key)
    if entry is not None:
        job.say("the original model is known: its record is used")
        return read_record(entry.folder), True
    job.say("looking at the original model")
    request = {
        "spec": job.spec_data,
        "base": str(job.base),
        "key": key,
        "cache": str(job.cache.root),
    }
    with job.worker("the original model", INSPECTION) as worker:
        done = worker.ask(request)
    original = read_record(Path(done["folder"]))
    job.clock.hooks += original.hook_seconds
    for note in original.notes:
        job.say(note)
    return original, False


def forget_original(job: Job) -> None:
    """Remove the record of an original that has changed since."""
    shutil.rmtree(job.cache.folder(original_key(job)), ignore_errors=True)
