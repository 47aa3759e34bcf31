"""Checks of TorchScript's answers: at two shapes, and twice at each."""

from __future__ import annotations

from typing import Literal

from megacompile.errors import ModelError, PassError
from megacompile.models import Feeds, Scripted
from megacompile_passes.convert.agreement import agrees, sizes_text
from megacompile_passes.messages import first_line

Method = Literal["trace", "script"]
REMEDY: dict[Method, str] = {
    "trace": "write sizes as x.shape[i] without int(), branches as torch.where; or use "
    "method: script",
    "script": "use method: trace",
}


def verify(
    scripted: Scripted, checks: list[tuple[Feeds, Feeds]], method: Method, warned: list[str]
) -> None:
    """Compare with the expected outputs; `warned` is what the tracer said.

    Raises:
        ModelError: the tracer warned, and there is only one shape to try.
        PassError: a call fails or an output is wrong; it says at which sizes.
    """
    dynamic = any(not dim.fixed for dim in scripted.signature.dims.values())
    if warned and len(checks) == 1 and dynamic:
        raise ModelError(
            what="the tracer warns, and there is no second shape to try", cause=warned[0]
        )
    for feeds, expected in checks:
        text = sizes_text(scripted.signature.sizes_of(feeds))
        try:
            # Twice: the first run profiles, the second takes the optimized graph.
            got = [scripted.run(feeds), scripted.run(feeds)][-1]
        except Exception as error:
            raise PassError(
                what=f"TorchScript (by {method}) fails at {text}",
                cause=first_line(error),
                remedy=REMEDY[method],
            ) from error
        for name, value in expected.items():
            if not agrees(got[name], value):
                raise PassError(
                    what=f"output '{name}' of TorchScript (by {method}) is wrong at {text}",
                    cause=warned[0] if warned else None,
                    expected=f"shape {list(value.shape)}",
                    got=f"shape {list(got[name].shape)}",
                    remedy=REMEDY[method],
                )
