"""A real Triton server on loopback, from the wheel `nvidia-pytriton`, for tests and benchmarks."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType

SITE = Path(sysconfig.get_paths()["purelib"])
# The Python backend of this wheel was compiled against numpy 1 and crashes with numpy 2. Its own
# numpy lies there, put by `make test`; only the server's processes see it.
NUMPY_1 = Path(sys.prefix) / "triton-python"
START_SECONDS, STOP_SECONDS = 60.0, 20.0


def missing() -> str | None:
    """Why no server can be started here; None if one can."""
    if importlib.util.find_spec("tritonclient") is None:
        return "tritonclient is not installed"
    if not (SITE / "pytriton" / "tritonserver" / "bin" / "tritonserver").is_file():
        return "the wheel nvidia-pytriton is not installed"
    if not stub().is_file():
        return f"nvidia-pytriton has no Python backend for Python {version()}"
    if not (NUMPY_1 / "numpy").is_dir():
        return f"numpy 1 for the server's Python is not in {NUMPY_1.name}"
    return None


def version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def stub() -> Path:
    return (
        SITE
        / "pytriton"
        / "tritonserver"
        / "python_backend_stubs"
        / version()
        / "triton_python_backend_stub"
    )


class Server:
    """Starts the server on a repository, waits until it is ready, stops it. A context manager.

    The repository is polled: what is added to it is served.
    """

    def __init__(self, repository: Path, work: Path, poll_seconds: int = 1) -> None:
        self.repository, self.work, self.poll_seconds = repository, work, poll_seconds
        self.http, self.grpc, self.metrics = _ports(3)
        self.log = work / "triton.log"

    def __enter__(self) -> Server:
        self.work.mkdir(parents=True, exist_ok=True)
        home = SITE / "pytriton" / "tritonserver"
        backends = self.work / "backends"
        shutil.copytree(home / "backends", backends, dirs_exist_ok=True)
        shutil.copy2(stub(), backends / "python" / stub().name)
        python = sysconfig.get_config_var("LIBDIR") or ""
        libraries = [str(SITE / "nvidia_pytriton.libs"), python]
        # The Python backend embeds the interpreter: it finds packages by PYTHONPATH alone.
        environment = {
            **os.environ,
            "LD_LIBRARY_PATH": ":".join(libraries),
            "PYTHONPATH": ":".join([str(NUMPY_1), *_own_path(), str(SITE)]),
        }
        command = [
            str(home / "bin" / "tritonserver"),
            f"--model-repository={self.repository}",
            f"--backend-directory={backends}",
            "--model-control-mode=poll",
            f"--repository-poll-secs={self.poll_seconds}",
            "--exit-on-error=false",
            f"--http-port={self.http}",
            f"--grpc-port={self.grpc}",
            f"--metrics-port={self.metrics}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            "--metrics-address=127.0.0.1",
            f"--exit-timeout-secs={int(STOP_SECONDS) - 5}",
        ]
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                command,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._wait()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def alive(self) -> bool:
        return self.process.poll() is None

    def metric(self, name: str, model: str) -> float:
        """A counter of the server's own metrics, summed over a model's versions."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics}/metrics") as answer:
            text = answer.read().decode()
        pattern = re.compile(rf'^{name}{{[^}}]*model="{model}"[^}}]*}} (\S+)$', re.MULTILINE)
        return sum(float(value) for value in pattern.findall(text))

    def _wait(self) -> None:
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end and self.alive():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http}/v2/health/live"):
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.2)
        raise RuntimeError(f"Triton did not start:\n{self.log.read_text()[-3000:]}")


def _own_path() -> list[str]:
    """Where this project is imported from, for an editable install."""
    folder = Path(__file__).resolve().parents[3]
    return [str(folder), str(folder / "passes")]


def _ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
