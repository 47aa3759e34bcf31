"""Worker processes: a crash inside a native library is one worker's failure, with a name.

A worker is `python -m megacompile.system.child MODULE:FUNCTION`; the function gets an iterator of
requests and a function to send events, both JSON. What the user's code or a library prints goes
to a log file, never into the conversation.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from megacompile.errors import WorkerError, from_dict

Send = Callable[[dict[str, Any]], None]


class Worker:
    """The parent's end of a worker process."""

    def __init__(
        self,
        name: str,
        function: str,
        log: Path,
        environment: Mapping[str, str] = {},
        cwd: Path | None = None,
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.name, self.log = name, log
        self.doing = "starting"
        receive, send = os.pipe()
        child = [sys.executable, "-m", "megacompile.system.child"]
        with open(log, "ab") as output:
            self.process = subprocess.Popen(
                [*child, function, str(send), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(send,),
                env={**os.environ, **environment},
                cwd=cwd,
                start_new_session=True,  # Ctrl-C reaches the parent alone, which ends its workers
            )
        os.close(send)
        self.receive = os.fdopen(receive, "r", encoding="utf-8")

    def rename(self, name: str, log: Path) -> None:
        """Give a waiting worker the name and the log of what it will do."""
        os.replace(self.log, log)
        self.name, self.log = name, log

    def request(self, message: dict[str, Any]) -> None:
        """Send a request; its answer comes with `events`.

        Raises:
            WorkerError: the worker is gone.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError) as error:
            raise self._gone() from error

    def events(self) -> Iterator[dict[str, Any]]:
        """Events until the worker says `done`.

        Raises:
            MegacompileError: the error that the worker sent.
            WorkerError: the worker ended without an answer.
        """
        for line in self.receive:
            event: dict[str, Any] = json.loads(line)
            if event.get("event") == "error":
                raise from_dict(event["error"])
            if event.get("event") == "doing":
                self.doing = event["what"]
            yield event
            if event.get("event") == "done":
                return
        raise self._gone()

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a request and wait for its `done`."""
        self.request(message)
        return list(self.events())[-1]

    def _gone(self) -> WorkerError:
        code = self.process.wait()
        if code < 0:
            ended = f"killed by {signal.Signals(-code).name}"
            hint = "out of memory?" if code == -signal.SIGKILL else "a crash in native code"
        else:
            ended, hint = f"ended with code {code}", None
        return WorkerError(
            what=f"the process of {self.name} was {ended} while {self.doing}",
            where=str(self.log),
            cause=hint or self.tail(),
            remedy="the log there has what it printed last",
        )

    def tail(self, lines: int = 3) -> str | None:
        """What the worker printed last, or None if it printed nothing."""
        try:
            text = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return None
        return " | ".join(text[-lines:]) or None

    def close(self) -> None:
        """End the worker and wait until it is gone.

        It is killed, not asked: what it answered is done and stored, and taking down torch takes
        half a second that nobody gains from.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        with contextlib.suppress(OSError, ValueError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        self.receive.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
