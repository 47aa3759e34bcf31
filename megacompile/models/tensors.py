"""Arrays travel between processes and libraries as numpy; torch meets them only here."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a name; bfloat16 comes from ml_dtypes, since numpy has none."""
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def to_torch(array: Array) -> torch.Tensor:
    """A tensor with a storage of its own: a model that writes into its input harms nobody."""
    import torch

    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.uint16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.array(array, order="C"))


def to_numpy(tensor: Any) -> Array:
    """A numpy array of a torch tensor (any device, bfloat16 included) or array-like."""
    if isinstance(tensor, np.ndarray):
        return tensor
    if not hasattr(tensor, "detach"):
        return np.asarray(tensor)
    import torch

    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(numpy_dtype("bfloat16"))
    return tensor.numpy()


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name."""
    import torch

    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def as_float64(array: Array) -> Array:
    """Values for comparison; complex numbers become pairs."""
    if np.iscomplexobj(array):
        array = np.stack([array.real, array.imag], axis=-1)
    return array.astype(np.float64)


_BFLOAT16 = "::bfloat16"  # npz has no bfloat16: its bits are stored as uint16 under a marked name


def save_arrays(path: Path, arrays: Feeds) -> None:
    """Write arrays to an .npz file without pickle."""
    stored: dict[str, Any] = {}
    for name, array in arrays.items():
        if array.dtype.name == "bfloat16":
            stored[name + _BFLOAT16] = array.view(np.uint16)
        else:
            stored[name] = array
    with open(path, "wb") as file:
        np.savez(file, **stored)


def load_arrays(path: Path) -> Feeds:
    """Read what `save_arrays` wrote (or any .npz without objects)."""
    arrays: Feeds = {}
    with np.load(path, allow_pickle=False) as stored:
        for name in stored.files:
            if name.endswith(_BFLOAT16):
                bits = stored[name]
                arrays[name.removesuffix(_BFLOAT16)] = bits.view(numpy_dtype("bfloat16"))
            else:
                arrays[name] = stored[name]
    return arrays
