"""Worker processes: requests, events, errors that travel, and ends with a name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from megacompile.errors import BackendError, PlanError, WorkerError
from megacompile.system.process import Worker

SERVANT = """
import os, signal, sys, time
from megacompile.errors import BackendError, PlanError, Problems


def serve(requests, send):
    for request in requests:
        send({"event": "doing", "what": request["do"]})
        if request["do"] == "echo":
            print("heard", request["value"])
            send({"event": "said", "value": request["value"]})
            send({"event": "done", "value": request["value"]})
        elif request["do"] == "where":
            here = {"cwd": os.getcwd(), "threads": os.environ.get("OMP_NUM_THREADS")}
            send({"event": "done", "pid": os.getpid(), **here})
        elif request["do"] == "refuse":
            raise BackendError(what="no such operator", where="node 3", remedy="use another")
        elif request["do"] == "refuse twice":
            raise Problems.of([PlanError(what="first"), PlanError(what="second")])
        elif request["do"] == "exhaust":
            raise MemoryError
        elif request["do"] == "die":
            print("one\\ntwo\\nthree\\nlast words", file=sys.stderr, flush=True)
            os.kill(os.getpid(), getattr(signal, request["by"]))
        elif request["do"] == "sleep":
            time.sleep(60)
        elif request["do"] == "exit":
            print("giving up", flush=True)
            sys.exit(7)
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    """Starts workers that serve the requests of SERVANT; all are ended after the test."""
    (tmp_path / "servant.py").write_text(SERVANT)
    started: list[Worker] = []

    def make(**environment: str) -> Worker:
        paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": ""}
        log = tmp_path / "logs" / f"{len(started)}.log"
        started.append(Worker("the toy", "servant:serve", log, environment, cwd=tmp_path))
        return started[-1]

    yield make
    for worker in started:
        worker.close()


def gone(pid: int) -> bool:
    """Whether a process ends within ten seconds."""
    for _ in range(200):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_one_worker_answers_request_after_request(start: Callable[..., Worker]) -> None:
    worker = start()
    for value in ("a", "ä\n"):
        worker.request({"do": "echo", "value": value})
        assert [event["event"] for event in worker.events()] == ["doing", "said", "done"]
    assert worker.ask({"do": "echo", "value": 3}) == {"event": "done", "value": 3}
    assert worker.tail(1) == "heard 3", "what is printed goes to the log, not into the answers"


def test_a_worker_has_its_own_folder_and_variables(
    start: Callable[..., Worker], tmp_path: Path
) -> None:
    found = start(OMP_NUM_THREADS="3").ask({"do": "where"})
    assert (found["cwd"], found["threads"]) == (str(tmp_path.resolve()), "3")
    assert found["pid"] != os.getpid()


def test_an_error_travels_with_its_type_and_words(start: Callable[..., Worker]) -> None:
    with pytest.raises(BackendError) as caught:
        start().ask({"do": "refuse"})
    expected = BackendError(what="no such operator", where="node 3", remedy="use another")
    assert caught.value == expected
    with pytest.raises(PlanError, match="first"):
        start().ask({"do": "refuse twice"})


def test_running_out_of_memory_is_said_so(start: Callable[..., Worker]) -> None:
    with pytest.raises(WorkerError, match="out of memory"):
        start().ask({"do": "exhaust"})


@pytest.mark.parametrize(
    ("by", "cause"), [("SIGKILL", "out of memory?"), ("SIGSEGV", "a crash in native code")]
)
def test_a_killed_worker_is_named_with_what_it_did(
    by: str, cause: str, start: Callable[..., Worker]
) -> None:
    worker = start()
    with pytest.raises(WorkerError) as caught:
        worker.ask({"do": "die", "by": by})
    assert caught.value.what == f"the process of the toy was killed by {by} while die"
    assert caught.value.cause == cause
    assert caught.value.where == str(worker.log)
    assert worker.tail() == "two | three | last words"
    with pytest.raises(WorkerError, match="killed by"):
        worker.request({"do": "echo", "value": 1})


def test_a_worker_that_gave_up_is_explained_by_its_last_words(
    start: Callable[..., Worker],
) -> None:
    with pytest.raises(WorkerError, match="was ended with code 7 while exit") as caught:
        start().ask({"do": "exit"})
    assert caught.value.cause == "giving up"


def test_a_waiting_worker_takes_a_new_name_and_log(
    start: Callable[..., Worker], tmp_path: Path
) -> None:
    worker = start()
    worker.ask({"do": "echo", "value": "before"})
    worker.rename("the candidate", tmp_path / "logs" / "candidate.log")
    worker.ask({"do": "echo", "value": "after"})
    assert worker.tail() == "heard before | heard after"
    with pytest.raises(WorkerError, match="the process of the candidate was killed"):
        worker.ask({"do": "die", "by": "SIGKILL"})


def test_a_closed_worker_is_gone(start: Callable[..., Worker]) -> None:
    with start() as worker:
        pid = worker.ask({"do": "where"})["pid"]
    assert gone(pid)
    worker.close()  # twice is no fault


def test_a_log_that_was_never_written_has_no_tail(start: Callable[..., Worker]) -> None:
    worker = start()
    worker.ask({"do": "where"})
    assert worker.tail() is None
    worker.log.unlink()
    assert worker.tail() is None


PARENT = """
import sys, time
from pathlib import Path
from megacompile.system.process import Worker
worker = Worker("toy", "servant:serve", Path(sys.argv[1]))
pid = worker.ask({"do": "where"})["pid"]
worker.request({"do": "sleep"})  # busy: it does not see that its requests ended
next(worker.events())
print(pid, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system has no parent-death signal")
def test_a_worker_dies_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "servant.py").write_text(SERVANT)
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    parent = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert psutil.pid_exists(pid)
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    assert gone(pid)
