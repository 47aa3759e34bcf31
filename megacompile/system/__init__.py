"""What a build needs of the machine: store, locks, processes, progress, facts, a user's files."""

from megacompile.system import hooks
from megacompile.system.cache import Cache, Entry, default_root, file_sha256, key_of
from megacompile.system.disk import disk_error
from megacompile.system.gpus import local_archs, no_gpu_reason, process_memory_mb
from megacompile.system.libraries import installed, missing
from megacompile.system.locks import output_lock
from megacompile.system.machine import (
    Environment,
    cpu_isa,
    environment,
    machine_name,
    thread_budget,
    thread_environment,
)
from megacompile.system.process import Send, Worker
from megacompile.system.progress import Listener, Progress
from megacompile.system.sources import python_sources, sources_hash

__all__ = [
    "Cache",
    "Entry",
    "Environment",
    "Listener",
    "Progress",
    "Send",
    "Worker",
    "cpu_isa",
    "default_root",
    "disk_error",
    "environment",
    "file_sha256",
    "hooks",
    "installed",
    "key_of",
    "local_archs",
    "machine_name",
    "missing",
    "no_gpu_reason",
    "output_lock",
    "process_memory_mb",
    "python_sources",
    "sources_hash",
    "thread_budget",
    "thread_environment",
]
