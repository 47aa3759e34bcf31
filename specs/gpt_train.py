"""A decoder of 50 million parameters, trained on the text of Python's own standard library.

Tokens are bytes, so that nothing has to be downloaded or trained first. Every sample is a window
of 257 bytes at a random place of the library's source files, in a seeded order; the model sees
256 of them and learns to tell each one's successor. The last files are held out.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LAYERS, LENGTH = 256, 512, 8, 16, 256
DROPOUT = 0.1
HELD_OUT = 0.1  # of the files
PIECE = 64  # windows that the stream gives at once
EVALUATED = 32  # windows


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs = nn.Linear(WIDTH, 3 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.inputs(x).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return result


class Block(nn.Module):
    """Attention and a two-layer network, each normalized first and added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_network = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention(self.before_attention(x)))
        hidden = F.gelu(self.wide(self.before_network(x)))
        return x + self.dropout(self.narrow(hidden))


class Decoder(nn.Module):
    """Byte and place embeddings, blocks, and a head that shares the bytes' embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.bytes.weight
        self.apply(_initialise)
        for block in self.blocks:  # residual sums must not grow with depth (GPT-2, section 2.3)
            for last in (block.attention.output, block.narrow):
                nn.init.normal_(last.weight, std=0.02 / (2 * LAYERS) ** 0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """int64 [batch, seq] of bytes -> logits [batch, seq, 256]."""
        x = self.bytes(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def build() -> nn.Module:
    """The decoder before training, the same in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Decoder()


def batches() -> Iterator[dict[str, NDArray[np.int64]]]:
    """Windows at random places of the training text, without end."""
    text, random = training_text(), np.random.default_rng(0)
    while True:
        yield windows(text, random.integers(0, len(text) - LENGTH - 1, PIECE))


def loss(outputs: Tensor, batch: dict[str, Tensor]) -> Tensor:
    """Mean cross entropy of every next byte, in nats."""
    return F.cross_entropy(outputs.flatten(0, 1), batch["next"].flatten())


def evaluate(run: Callable[..., NDArray[np.float32]]) -> dict[str, NDArray[np.float64]]:
    """Bits that each byte of the held-out text takes: one score per window."""
    text = held_out_text()
    batch = windows(text, np.linspace(0, len(text) - LENGTH - 1, EVALUATED).astype(np.int64))
    scores = []
    for at in range(0, EVALUATED, 4):
        logits = torch.from_numpy(run(tokens=batch["tokens"][at : at + 4]))
        wanted = torch.from_numpy(batch["next"][at : at + 4])
        nats = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none")
        scores.append(nats.view(wanted.shape).mean(dim=1) / np.log(2))
    return {"bits_per_byte": torch.cat(scores).double().numpy()}


def windows(text: NDArray[np.uint8], starts: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """`tokens` and, one place further, `next`: int64 [windows, 256] each."""
    found = text[starts[:, None] + np.arange(LENGTH + 1)].astype(np.int64)
    return {"tokens": found[:, :-1], "next": found[:, 1:]}


def training_text() -> NDArray[np.uint8]:
    return _texts()[0]


def held_out_text() -> NDArray[np.uint8]:
    return _texts()[1]


@cache
def _texts() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The library's source files in a seeded order, cut into two parts."""
    library = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3"}
    files = sorted(f for f in library.rglob("*.py") if skipped.isdisjoint(f.parts))
    order = np.random.default_rng(0).permutation(len(files))
    cut = int(len(files) * (1 - HELD_OUT))

    def joined(chosen: NDArray[np.int64]) -> NDArray[np.uint8]:
        text = b"".join(files[index].read_bytes() for index in chosen)
        return np.frombuffer(text, dtype=np.uint8)

    return joined(order[:cut]), joined(order[cut:])


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)
