"""Arrays between numpy, torch and files: dtypes and values stay, storages are one's own."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch

from megacompile.models.tensors import (
    as_float64,
    load_arrays,
    numpy_dtype,
    save_arrays,
    to_numpy,
    to_torch,
    torch_dtype,
)

DTYPES = ["bool", "uint8", "int64", "float16", "bfloat16", "float32", "complex64"]


@pytest.mark.parametrize("name", DTYPES)
def test_there_and_back(name: str) -> None:
    array = np.array([[0, 1], [1, 3]]).astype(numpy_dtype(name))
    tensor = to_torch(array)
    assert tensor.dtype == torch_dtype(name)
    back = to_numpy(tensor)
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_a_tensor_has_a_storage_of_its_own() -> None:
    for array in (np.zeros(3), np.zeros(3, ml_dtypes.bfloat16)):
        to_torch(array).fill_(7)
        assert not array.any()


def test_any_tensor_becomes_an_array() -> None:
    tensor = torch.arange(6.0, requires_grad=True).view(2, 3).t()
    assert to_numpy(tensor).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert to_numpy([1, 2]).tolist() == [1, 2]
    array = np.ones(2)
    assert to_numpy(array) is array


def test_complex_numbers_are_compared_as_pairs() -> None:
    found = as_float64(np.array([1 + 2j, 3 - 4j], np.complex64))
    assert found.dtype == np.float64
    assert found.tolist() == [[1, 2], [3, -4]]


def test_files_hold_every_dtype_without_pickle(tmp_path: Path) -> None:
    arrays = {name: np.arange(4).reshape(2, 2).astype(numpy_dtype(name)) for name in DTYPES}
    save_arrays(tmp_path / "a.npz", arrays)
    found = load_arrays(tmp_path / "a.npz")
    assert list(found) == DTYPES
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    np.savez(tmp_path / "objects.npz", x=np.array([None, "a"]))
    with pytest.raises(ValueError, match="pickle"):
        load_arrays(tmp_path / "objects.npz")
