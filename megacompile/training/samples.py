"""Numbered samples for training that goes over its data again and chooses among them.

A stream is read once and kept in memory; a Dataset is read where it is asked. Samples of one
shape make a batch: texts of different lengths need no padding to the longest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from megacompile.errors import DataError
from megacompile.system import hooks
from megacompile.training.batches import piece_of, rows_of
from megacompile.training.data.samples import is_numbered, is_sample_stream, open_source
from megacompile.training.loading import Batch, collate


class Samples:
    """Samples by number. `groups` are numbers of samples of equal shapes, which can be stacked; if
    `whole`, each piece is a group of its own."""

    def __init__(
        self, source: Any, pieces: Sequence[Batch], label: str, whole: bool = False
    ) -> None:
        self._source, self.label = source, label
        self._pieces = pieces
        self._place: list[tuple[int, int]] = []
        if source is None:
            by_shape: dict[Any, list[int]] = {}
            for number, piece in enumerate(pieces):
                shape = tuple((name, one.dtype, one.shape[1:]) for name, one in piece.items())
                group = by_shape.setdefault(number if whole else shape, [])
                for row in range(rows_of(piece)):
                    group.append(len(self._place))
                    self._place.append((number, row))
            self.groups = list(by_shape.values())
        else:
            self.groups = [list(range(len(source)))]

    def __len__(self) -> int:
        return sum(len(group) for group in self.groups)

    def take(self, numbers: Sequence[int]) -> Batch:
        """Samples of one group, stacked along a new first axis."""
        if self._source is not None:
            read = partial(_items, self._source, numbers)
            return collate(hooks.call(self.label, read, leaf=DataError), self.label)
        places = [self._place[number] for number in numbers]
        rows = [(self._pieces[at], row) for at, row in places]
        return {name: torch.stack([piece[name][row] for piece, row in rows]) for name in rows[0][0]}


def _items(source: Any, numbers: Sequence[int]) -> list[Any]:
    return [source[number] for number in numbers]


def open_samples(
    reference: str, base: Path, limit: int, label: str = "batches", whole: bool = False
) -> Samples:
    """The samples that a reference names, at most `limit` of them; `whole` keeps the pieces of a
    stream together.

    `reference` is FILE.py:NAME that gives dicts of name to array (first axis: samples) or a
    torch Dataset, or npz:FILE, arrays:FOLDER, lmdb:FOLDER.

    Raises:
        SpecError, DataError: it can't be found or read, or is empty.
    """
    label = f"{label} '{reference}'"
    source = open_source(reference, base, label, preload=True)
    if is_numbered(source):
        if whole:
            raise DataError(
                what=f"{label} gives single samples, not pieces",
                expected="an iterable of dicts, each a whole batch",
                remedy="leave out `sampling: pieces`",
            )
        samples = Samples(_first(source, limit), [], label)
    else:
        pieces = hooks.call(label, _read, source, limit, label, leaf=DataError)
        samples = Samples(None, pieces, label, whole)
    if not len(samples):
        raise DataError(what=f"{label} is empty", expected="at least one sample")
    return samples


def _first(dataset: Any, limit: int) -> Any:
    if len(dataset) <= limit:
        return dataset
    return torch.utils.data.Subset(dataset, range(limit))


def _read(source: Iterable[Any], limit: int, label: str) -> list[Batch]:
    """Pieces of a stream until `limit` samples are there; it may have no end."""
    pieces: list[Batch] = []
    count = 0
    for number, one in enumerate([source] if isinstance(source, Mapping) else source):
        where = f"piece {number} of {label}"
        piece = collate([one], label) if is_sample_stream(source) else piece_of(one, where)
        left = limit - count
        pieces.append({name: tensor[:left].clone() for name, tensor in piece.items()})
        count += rows_of(pieces[-1])
        if count >= limit:
            break
    return pieces


class Sampler:
    """Batches of sample numbers: every epoch a new order, or by the samples' own losses.

    By losses, a sample's chance is its last loss to the power of `strength`, mixed with an equal
    chance for all (a tenth), and the `weights` it is counted with make up for the choice
    (importance sampling: Katharopoulos and Fleuret, arXiv:1803.00942), so that the expected
    gradient stays that of all samples.
    """

    FLOOR = 0.1

    def __init__(
        self,
        groups: Sequence[Sequence[int]],
        batch_size: int,
        seed: int,
        by_loss: bool = False,
        strength: float = 1.0,
    ) -> None:
        self.groups = [torch.tensor(group) for group in groups]
        self.batch_size, self.by_loss, self.strength = batch_size, by_loss, strength
        self.generator = torch.Generator().manual_seed(seed)
        count = max(int(group.max()) for group in self.groups) + 1
        self.losses = torch.full((count,), float("nan"), dtype=torch.float64)
        self.waiting: list[torch.Tensor] = []

    @property
    def batches_per_epoch(self) -> int:
        """Batches that see every sample once; the rest of a group makes a smaller one."""
        return sum(-(-len(group) // self.batch_size) for group in self.groups)

    def next(self) -> tuple[list[int], torch.Tensor]:
        """Numbers of the next batch, and the weight of each (their mean is near 1)."""
        if self.by_loss and not bool(self.losses.isnan().all()):
            return self._by_loss()
        if not self.waiting:
            parts: list[torch.Tensor] = []
            for group in self.groups:
                parts += group[self._order(len(group))].split(self.batch_size)
            self.waiting = [parts[int(at)] for at in self._order(len(parts))]
        numbers = self.waiting.pop(0)
        return numbers.tolist(), torch.ones(len(numbers))

    def learn(self, numbers: Sequence[int], losses: torch.Tensor) -> None:
        """Note the latest loss of each sample."""
        self.losses[torch.tensor(numbers)] = losses.detach().double().cpu()

    def state_dict(self) -> dict[str, Any]:
        """What the next batch depends on."""
        return {
            "random": self.generator.get_state(),
            "losses": self.losses,
            "waiting": list(self.waiting),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state_dict` gave."""
        self.generator.set_state(state["random"])
        self.losses = state["losses"]
        self.waiting = list(state["waiting"])

    def _order(self, count: int) -> torch.Tensor:
        return torch.randperm(count, generator=self.generator)

    def _by_loss(self) -> tuple[list[int], torch.Tensor]:
        # A sample that was never seen counts as an average one.
        known = torch.nan_to_num(self.losses, nan=float(self.losses.nanmean()))
        chance = known.clamp(min=0).pow(self.strength)
        sizes = torch.tensor([float(len(group)) for group in self.groups]).double()
        chosen = int(torch.multinomial(sizes, 1, generator=self.generator))
        group = self.groups[chosen]
        mine = chance[group]
        mine = mine / mine.sum() if float(mine.sum()) > 0 else torch.full_like(mine, 1 / len(mine))
        mine = (1 - self.FLOOR) * mine + self.FLOOR / len(group)
        size = min(self.batch_size, len(group))
        picked = torch.multinomial(mine, size, replacement=True, generator=self.generator)
        weights = 1 / (len(group) * mine[picked])
        return group[picked].tolist(), weights.float()
