"""How much arithmetic and memory traffic a model needs: counted, not measured.

Only matrix products count (linear, convolution, attention, recurrent), two operations per
multiply-add: they're what the measured ceilings are made of.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class OperationCount:
    """One call's needs. `least_bytes` is what any engine must move, however well it fuses.

    `weight_bytes`: parameters and buffers that are read; of a table that is only looked up
    (an embedding), the rows looked up. `activation_bytes`: everything the operators write, one
    by one, as if nothing was fused. `io_bytes`: the model's inputs and outputs.
    """

    operations: int
    weight_bytes: int
    activation_bytes: int
    io_bytes: int = 0
    note: str | None = None

    @property
    def least_bytes(self) -> int:
        """Weights read once, inputs read and outputs written once."""
        return self.weight_bytes + self.io_bytes
