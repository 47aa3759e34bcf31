"""Several processes that train one step together and answer the same questions.

On one machine the driver starts them with the process engine that `torchrun` uses. Under
`torchrun` itself its processes are there already, on several machines perhaps: they wait in
`follow` and start their member when the driver asks for a crew; files must then lie where all
machines see them.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from megacompile.errors import MegacompileError, ModelError, WorkerError, from_dict

dist: Any = torch.distributed  # its stores are not exported to type checkers
WAIT = datetime.timedelta(hours=12)  # a member waits for its next question as long as it takes
POLL_SECONDS = 0.002
MEMBER = """
import json, sys
from megacompile.measure.training.crew import member
member(int(sys.argv[1]), json.loads(sys.argv[2]))
"""


class Crew:
    """Members of a process group; a context manager. Each serves `handler`: `module:function`
    that takes `request` and gives a function from a message to an answer (both JSON)."""

    def __init__(
        self,
        processes: int,
        threads: int,
        handler: str,
        request: Mapping[str, Any],
        log: Path | None = None,
    ) -> None:
        self.processes = processes
        self.log = log or Path(tempfile.mkdtemp(prefix="megacompile-crew-"))
        self._own_log = log is None
        self._asked = 0
        self._store = dist.TCPStore(
            "0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=WAIT
        )
        order = {
            "host": _address(),
            "port": self._store.port,
            "world": processes,
            "threads": max(1, threads // _local(processes)),
            "handler": handler,
        }
        self._store.set("request", json.dumps(dict(request)))
        self._context = self._start(order)

    def ask(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """All members' answers by rank.

        Raises:
            MegacompileError: a member's own error. WorkerError: a member ended.
        """
        number, self._asked = self._asked, self._asked + 1
        self._store.set(f"ask/{number}", json.dumps(dict(message)))
        answers: dict[int, dict[str, Any]] = {}
        while len(answers) < self.processes:
            for rank in range(self.processes):
                if rank not in answers and self._store.check([f"answer/{number}/{rank}"]):
                    answer = json.loads(self._store.get(f"answer/{number}/{rank}"))
                    if "error" in answer:
                        raise from_dict(answer["error"])
                    answers[rank] = answer
            self._check_alive()
            time.sleep(POLL_SECONDS)
        return [answers[rank] for rank in range(self.processes)]

    def close(self) -> None:
        """End all members."""
        self._store.set(f"ask/{self._asked}", json.dumps({"end": True}))
        self._context.close()
        if self._own_log:  # after a failure it stays: the error names it
            shutil.rmtree(self.log, ignore_errors=True)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _start(self, order: dict[str, Any]) -> Any:
        from torch.distributed.elastic.multiprocessing import (
            DefaultLogsSpecs,
            Std,
            start_processes,
        )

        local = range(self.processes)
        if under_torchrun():
            world = int(os.environ["WORLD_SIZE"])
            if world != self.processes:
                raise ModelError(
                    what=f"the step is made for {self.processes} processes",
                    got=f"torchrun started {world}",
                    remedy="set distribute.processes to that number",
                )
            _publish(order)
            local = range(1)
        # The driver's own streams are a conversation: what members print goes to files.
        logs = DefaultLogsSpecs(log_dir=str(self.log), redirects=Std.ALL)
        return start_processes(
            name="megacompile",
            entrypoint=member,
            args={rank: (rank, order) for rank in local},
            envs={rank: {"RANK": str(rank)} for rank in local},
            logs_specs=logs,
            start_method="spawn",
        )

    def _check_alive(self) -> None:
        found = self._context.wait(0)
        if found is None or not found.failures:
            return
        rank, failure = next(iter(found.failures.items()))
        self._own_log = False
        file = Path(failure.error_file)
        lines = file.read_text() if file.is_file() else ""
        self._context.close()
        raise WorkerError(
            what=f"process {rank} of {self.processes} ended with code {failure.exitcode}",
            where=str(self.log),
            cause=lines[:200] or None,
            remedy="the logs there have what it printed last",
        )


def member(rank: int, order: Mapping[str, Any]) -> None:
    """One process of a crew: join the group, then answer until told to end."""
    torch.set_num_threads(order["threads"])
    store = dist.TCPStore(order["host"], order["port"], is_master=False, timeout=WAIT)
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group(
        backend, store=dist.PrefixStore("group", store), rank=rank, world_size=order["world"]
    )
    try:
        module, _, name = order["handler"].partition(":")
        handle: Callable[[Any], Any] | None = None
        number = 0
        while True:
            message = json.loads(store.get(f"ask/{number}"))
            if message.get("end"):
                return
            try:
                if handle is None:
                    make = getattr(importlib.import_module(module), name)
                    handle = make(json.loads(store.get("request")))
                assert handle is not None
                answer = handle(message)
            except MegacompileError as error:
                answer = {"error": error.to_dict()}
            except Exception as error:  # noqa: BLE001 - it travels to the driver, who raises it
                traceback.print_exc()
                failure = WorkerError(
                    what=f"process {rank} of {order['world']} failed",
                    cause=f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}",
                )
                answer = {"error": failure.to_dict()}
            store.set(f"answer/{number}/{rank}", json.dumps(answer))
            number += 1
    finally:
        dist.destroy_process_group()


def under_torchrun() -> bool:
    """Whether `torchrun` started this build, or the build that this is a worker of."""
    return "TORCHELASTIC_RUN_ID" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def follow() -> None:
    """What every process of `torchrun` but the first does: start a member for each crew that the
    first process's build asks for, until that build is done."""
    store, number = _meeting(), 0
    while True:
        order = json.loads(store.get(f"megacompile/crew/{number}"))
        if order.get("end"):
            return
        command = [sys.executable, "-c", MEMBER, os.environ["RANK"], json.dumps(order)]
        subprocess.run(command, check=False)
        number += 1


def dismiss() -> None:
    """Let the other processes of `torchrun` end."""
    _publish({"end": True})


def _publish(order: Mapping[str, Any]) -> None:
    store = _meeting()
    number = store.add("megacompile/crews", 1) - 1
    store.set(f"megacompile/crew/{number}", json.dumps(dict(order)))


def _meeting() -> Any:
    """The store that `torchrun` keeps for its processes."""
    return dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=WAIT
    )


def _address() -> str:
    return socket.gethostname() if under_torchrun() else "127.0.0.1"


def _local(processes: int) -> int:
    return int(os.environ.get("LOCAL_WORLD_SIZE", processes)) if under_torchrun() else processes
