"""Counts of torch modules against pencil and paper."""

from __future__ import annotations

import pytest
import torch

from megacompile.measure.module_operations import count_module


def test_a_linear_layer_takes_two_operations_per_multiply_add():
    found = count_module(torch.nn.Linear(8, 4), (torch.zeros(3, 8),))
    assert found.operations == 2 * 3 * 8 * 4
    assert found.weight_bytes == 4 * (8 * 4 + 4)
    assert found.activation_bytes == 4 * 3 * 4
    assert found.io_bytes == 4 * (3 * 8 + 3 * 4)
    assert found.least_bytes == found.weight_bytes + found.io_bytes


def test_attention_counts_both_products():
    class Attend(torch.nn.Module):
        def forward(self, query, key):
            return torch.nn.functional.scaled_dot_product_attention(query, key, key)

    found = count_module(Attend(), (torch.zeros(2, 3, 5, 16),), {"key": torch.zeros(2, 3, 7, 16)})
    assert found.operations == 2 * 2 * 3 * 5 * 7 * (16 + 16)


@pytest.mark.parametrize("kind", [torch.nn.LSTM, torch.nn.GRU])
def test_recurrent_layers_count_every_step(kind):
    gates = 4 if kind is torch.nn.LSTM else 3
    found = count_module(kind(8, 16, bidirectional=True), (torch.zeros(5, 2, 8),))
    assert found.operations == 2 * 2 * 5 * 2 * gates * 16 * (8 + 16)


def test_a_fused_transformer_layer_hides_nothing():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    found = count_module(layer, (torch.zeros(1, 4, 16),))
    linear, attention = 2 * 4 * (4 * 16 * 16 + 2 * 16 * 32), 2 * 2 * 4 * 4 * (8 + 8)
    assert found.operations == linear + attention
    assert torch.backends.mha.get_fastpath_enabled()


def test_a_table_that_is_looked_up_counts_its_rows_and_a_tied_one_whole():
    class Model(torch.nn.Module):
        def __init__(self, tied: bool) -> None:
            super().__init__()
            self.table, self.tied = torch.nn.Embedding(1000, 8), tied

        def forward(self, ids):
            rows = self.table(ids)
            return rows @ self.table.weight.t() if self.tied else rows

    ids = torch.zeros(3, dtype=torch.int64)
    assert count_module(Model(False), (ids,)).weight_bytes == 4 * 3 * 8
    assert count_module(Model(True), (ids,)).weight_bytes == 4 * 1000 * 8


def test_the_module_is_as_before_even_after_a_failure():
    class Broken(torch.nn.Module):
        def forward(self, x):
            raise KeyError("broken")

    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Dropout(), torch.nn.Identity())
    model[1].eval()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    count_module(model, (torch.randn(8, 4),))
    assert [part.training for part in model.modules()] == [True, True, False, True]
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    model[2] = Broken()
    with pytest.raises(KeyError):
        count_module(model, (torch.randn(8, 4),))
    assert model.training
