"""`megacompile plan --check-operators`: backends' own parsers over what they would get."""

from __future__ import annotations

import tempfile
from pathlib import Path

from megacompile.builder import (
    CANDIDATE,
    Options,
    inspect_original,
    make_job,
    quantized_source,
    request_of,
)
from megacompile.errors import MegacompileError
from megacompile.plan import Backend, Plan, Refusal
from megacompile.spec import Loaded
from megacompile.system import Progress


def operators_refused(loaded: Loaded, plan: Plan) -> dict[str, list[Refusal]]:
    """For each candidate whose backend can be asked, what its parser does not take.

    The passes run, from the store where they can; a candidate whose pass fails has that as its
    one refusal.

    Raises:
        MegacompileError: the original model can't be loaded or run.
    """
    asked = [one for one in plan.candidates if one.unavailable is None and _can_ask(one.backend)]
    if not asked:
        return {}
    with tempfile.TemporaryDirectory(prefix="megacompile-operators-") as folder:
        options = Options(build_dir=Path(folder))
        job = make_job(loaded, plan, options, Progress("plain"), quantized_source(loaded))
        original, _ = inspect_original(job)
        found: dict[str, list[Refusal]] = {}
        for one in asked:
            job.say(f"asking {one.backend.name} about {one.name}")
            request = {**request_of(job, one, original), "check_operators": True}
            with job.worker(one.name, CANDIDATE) as worker:
                try:
                    answer = worker.ask(request)
                except MegacompileError as error:
                    reason, remedy = str(error).splitlines()[0], error.remedy or "see the error"
                    found[one.name] = [Refusal("?", "?", None, reason, remedy)]
                    continue
            found[one.name] = [Refusal(**refusal) for refusal in answer["refused"] or []]
    return found


def _can_ask(backend: Backend) -> bool:
    return type(backend).check_operators is not Backend.check_operators
