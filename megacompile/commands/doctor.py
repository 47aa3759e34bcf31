"""`megacompile doctor`: what this machine can do."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace

from megacompile.commands.output import out

NAME = "doctor"
HELP = "measure this machine's ceilings and check what is installed"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("--json", action="store_true")


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.builder import machine_ceilings
    from megacompile.engines import here
    from megacompile.plan import registry
    from megacompile.system import Cache, default_root, environment, no_gpu_reason

    machine = here()
    found = environment(machine.threads)
    ceilings = machine_ceilings(machine, Cache(default_root()), lambda _: None, fresh=True)
    states: dict[str, str] = {}
    for name in sorted(registry.backend_table()):
        state = registry.backend_class(name)().availability(machine)
        states[name] = state.reason or "available"
    if arguments.json:
        data = {
            "environment": found.model_dump(),
            "rates": ceilings.rates,
            "bandwidth": ceilings.bandwidth,
            "backends": states,
        }
        out(json.dumps(data, indent=2))
        return 0
    out(f"machine      {found.machine}, {found.cores} cores, {found.memory_mb / 1000:.1f} GB")
    out(f"threads      {found.threads} (this process's affinity and cgroup)")
    out(f"instructions {', '.join(found.isa)}")
    out(f"GPUs         {', '.join(found.gpus) or no_gpu_reason()}")
    out(f"load         {found.load_average} (figures are only worth something on an idle machine)")
    for dtype, rate in ceilings.rates.items():
        out(f"matrix products in {dtype:<9} {rate / 1e9:8.0f} GOP/s")
    out(f"memory bandwidth            {ceilings.bandwidth / 1e9:8.1f} GB/s")
    for name, shown in states.items():
        out(f"{name:<14} {shown}")
    return 0
