"""`megacompile export-triton`: a bundle into a model repository."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from megacompile.commands.output import out

NAME = "export-triton"
HELP = "add a bundle to a model repository of Triton Inference Server"


def add_arguments(parser: ArgumentParser) -> None:
    """The arguments of this command."""
    parser.add_argument("bundle")
    parser.add_argument("repository", help="the folder; made if it is not there")
    parser.add_argument(
        "--new-config",
        action="store_true",
        help="replace batching, instances, warm-up and version policy of a model that is there",
    )


def run(arguments: Namespace) -> int:
    """Do it; returns the exit code."""
    from megacompile.deploy import export_triton

    bundle, repository = Path(arguments.bundle), Path(arguments.repository)
    found = export_triton(bundle, repository, out, arguments.new_config)
    for one in found.curve:
        out(f"  batch {one.batch:>3}: {one.latency_ms:8.2f} ms, {one.throughput:8.0f} samples/s")
    if found.tuning is not None:
        sizes = ", ".join(map(str, found.tuning.preferred)) or "any"
        out(
            f"dynamic batching: preferred sizes {sizes}, a request waits at most "
            f"{found.tuning.delay_us} us"
        )
    for note in found.notes:
        out(note)
    out(f"written: {', '.join(found.models)}, version {found.version}")
    out(f"clients call '{found.name}'")
    return 0
