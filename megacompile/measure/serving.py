"""How a worker that is measured answers: `load` makes it, any other operation is its method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from megacompile.system import Send


def answer_all(
    requests: Iterator[dict[str, Any]], send: Send, load: Callable[[dict[str, Any]], Any]
) -> None:
    """Answer every request with a `done` event. `load` comes first; what it makes says in
    `loaded` what came of it."""
    worker: Any = None
    for request in requests:
        operation = request["operation"]
        if operation == "load":
            send({"event": "doing", "what": "loading"})
            worker = load(request)
            answer = worker.loaded
        else:
            assert worker is not None
            if operation != "time":  # a race times nothing but the calls
                send({"event": "doing", "what": operation})
            answer = getattr(worker, operation)(request)
        send({"event": "done", **answer})
