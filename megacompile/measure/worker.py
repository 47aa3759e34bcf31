"""One engine or baseline in a process of its own, timed on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from megacompile.engines import (
    CompiledModel,
    TorchRunner,
    check_samples,
    checks_of,
    here,
    load_part,
    load_runner,
    read_manifest,
)
from megacompile.measure.calibration import calibration_hash
from megacompile.measure.evaluation import evaluate
from megacompile.measure.instruments.memory import peak_mb, reset_peak
from megacompile.measure.instruments.verification import enforce, record_of, run_all
from megacompile.measure.original import Original
from megacompile.measure.serving import answer_all
from megacompile.models import (
    Eager,
    Feeds,
    Form,
    Onnx,
    Signature,
    compare,
    examples,
    fingerprint,
    load_original,
    quiet,
    save_arrays,
    to_torch,
)
from megacompile.plan import (
    EAGER_BASELINES,
    LAST_FORM,
    Backend,
    Effect,
    Machine,
    Runner,
    backend_class,
)
from megacompile.spec import Spec, load_spec_data
from megacompile.system import Send, process_memory_mb

WARM_SECONDS = 0.2
WARM_CALLS = 3


def serve(requests: Iterator[dict[str, Any]], send: Send) -> None:
    """Worker function: `load` (a candidate, a baseline or a bundle) first, then `point`, `time`,
    `memory`, `verify`, `count` and `evaluate`."""
    answer_all(requests, send, _Worker)


class _Worker:
    def __init__(self, request: dict[str, Any]) -> None:
        self.call: Callable[[], Any] = lambda: None
        reset_peak()
        start = time.perf_counter()
        if "unfinished" in request:
            self.folder = Path(request["unfinished"])
            self.runner, self.signature = load_part(
                self.folder,
                request["backend"],
                request["options"],
                Path(request["folder"]),
                request["threads"],
            )
            self.seed, self.machine = 0, here(request["threads"], _device(self.folder))
            self.loaded: dict[str, Any] = {}
        elif "bundle" in request:
            self.runner, self.signature = load_runner(Path(request["bundle"]), request["threads"])
            cosine = check_samples(Path(request["bundle"]), self.runner.run)
            self.seed, self.machine = 0, here(request["threads"])
            self.loaded = {"samples_cosine": cosine}
        else:
            self._load_candidate(request)
        self.loaded["load_seconds"] = round(time.perf_counter() - start, 3)

    def _load_candidate(self, request: dict[str, Any]) -> None:
        self.base = Path(request["base"])
        spec = load_spec_data(request["spec"], self.base).spec
        assert spec is not None  # the parent has checked it
        self.spec: Spec = spec
        self.machine = Machine.from_dict(request["machine"])
        original = Original(**request["original"])
        self.signature, self.seed = original.signature(spec), spec.seed
        self.runner, self.loaded = self._load(request)
        if request.get("confirm"):
            self.loaded["calibration_hash"] = calibration_hash(spec, self.base, self.signature)

    def _load(self, request: dict[str, Any]) -> tuple[Runner, dict[str, Any]]:
        if request["backend"] in EAGER_BASELINES:
            form = load_original(self.spec, self.base, self.signature)
            loaded = {"fingerprint": fingerprint(form)} if request.get("confirm") else {}
            compiled = request["backend"] == "torch.compile"
            return EagerRunner(form, self.machine, compiled), loaded
        if request["backend"] == LAST_FORM:
            form = Onnx.load(Path(request["folder"]), self.signature)
            return EagerRunner(form, self.machine, compiled=False), {}
        backend: Backend = backend_class(request["backend"])(**request["options"])
        return backend.load(Path(request["folder"]), self.machine, self.signature), {}

    def point(self, request: dict[str, Any]) -> dict[str, Any]:
        """Put inputs of one benchmark point in place and warm up."""
        feeds = examples.make(self.signature, request["dims"], self.seed)
        self.call = self.runner.prepare(feeds)
        with quiet():
            end = time.perf_counter() + WARM_SECONDS
            calls = 0
            while calls < WARM_CALLS or (time.perf_counter() < end and calls < 1000):
                self.call()
                calls += 1
        reset_peak()
        return {}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """Latencies of single calls in milliseconds."""
        call, clock = self.call, time.perf_counter_ns
        taken = []
        for _ in range(request["iterations"]):
            start = clock()
            call()
            taken.append((clock() - start) / 1e6)
        return {"latencies": taken}

    def memory(self, request: dict[str, Any]) -> dict[str, Any]:
        """Peak memory of this process since the point was prepared, in MB: resident, or on the
        GPU where the engine runs on one."""
        if self.machine.device == "cuda":
            return {"peak_memory_mb": process_memory_mb() or _torch_peak_mb()}
        return {"peak_memory_mb": peak_mb()}

    def verify(self, request: dict[str, Any]) -> dict[str, Any]:
        """All stored checks of an unfinished bundle on its engine."""
        manifest = read_manifest(self.folder, check_files=False)
        checks = checks_of(self.folder, manifest)
        results = run_all(checks, self.runner.run)
        found = compare(checks, results)
        enforce(found, Effect(request["effect"]), request["dtype"], "the engine")
        save_arrays(Path(request["samples"]), results[0])
        return {"error_record": record_of(found).model_dump(mode="json")}

    def count(self, request: dict[str, Any]) -> dict[str, Any]:
        """What the original needs at one benchmark point."""
        if isinstance(self.runner, EagerRunner):
            form = self.runner.form
        else:
            form = load_original(self.spec, self.base, self.signature)
        return count(form, request["dims"], self.seed)

    def evaluate(self, request: dict[str, Any]) -> dict[str, Any]:
        """The user's metric on this engine."""
        source = self.spec.data.evaluation
        assert source is not None
        run = CompiledModel(self.runner.run, self.signature)
        start = time.perf_counter()
        metrics = evaluate(source, self.base, run)
        return {"metrics": metrics, "seconds": round(time.perf_counter() - start, 3)}


def _device(folder: Path) -> str:
    return str(read_manifest(folder, check_files=False)["target"]["device"])


def _torch_peak_mb() -> float | None:
    """What torch's allocator held at most; other libraries' memory is not in it."""
    import torch

    held = torch.cuda.max_memory_reserved()
    return round(held / 1e6, 1) if held else None


def count(form: Form, dims: Mapping[str, int], seed: int) -> dict[str, Any]:
    """Operations and bytes that one call of the original needs at given sizes."""
    try:
        if isinstance(form, Onnx):
            from megacompile.measure.onnx_operations import count_onnx

            found = count_onnx(form.path, dims)
        elif isinstance(form, Eager):
            from megacompile.measure.module_operations import count_module

            feeds = examples.make(form.signature, dims, seed)
            arguments = form.signature.arguments(lambda name: to_torch(feeds[name]))
            args, kwargs = form.binding.split(arguments)
            found = count_module(form.module, args, kwargs)
        else:
            return {"note": f"operations are not counted in a {form.name} model"}
    except Exception as error:  # noqa: BLE001 - a count that fails costs a figure, not the build
        return {"note": f"operations could not be counted: {type(error).__name__}: {error}"}
    return {
        "operations": float(found.operations),
        "bytes_moved": float(found.least_bytes),
        "note": found.note,
    }


class EagerRunner(Runner):
    """The unchanged model, as torch runs it; `compiled` wraps it in torch.compile's defaults."""

    def __init__(self, form: Form, machine: Machine, compiled: bool) -> None:
        import torch

        torch.set_num_threads(machine.threads)
        self.form, self.device = form, machine.device
        self.signature: Signature = form.signature
        self.inner: Runner | None = None
        if self.device == "cuda" and not isinstance(form, Onnx):
            form.module.to(self.device)  # type: ignore[attr-defined]
        on_cpu = isinstance(form, Eager) and not compiled and self.device == "cpu"
        if not on_cpu and not isinstance(form, Onnx):
            call: Any = form.flat() if isinstance(form, Eager) else form.leaves  # type: ignore[attr-defined]
            call = torch.compile(call) if compiled else call
            self.inner = TorchRunner(call, machine.threads, form.signature, self.device)

    def run(self, feeds: Feeds) -> Feeds:
        return (self.inner or self.form).run(feeds)

    def prepare(self, feeds: Feeds) -> Callable[[], Any]:
        if self.inner is not None:
            return self.inner.prepare(feeds)
        assert isinstance(self.form, Eager)
        import torch

        arguments = self.signature.arguments(lambda name: to_torch(feeds[name]))
        args, kwargs = self.form.binding.split(arguments)
        module = self.form.module

        def once() -> Any:
            with torch.inference_mode():
                return module(*args, **kwargs)

        return once
