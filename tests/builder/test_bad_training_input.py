"""What a user can get wrong with a training spec: one clear error, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from megacompile.errors import MegacompileError
from tests.builder.training_world import build, spec_of

pytest.importorskip("sklearn")


LOSS = "import torch\nimport torch.nn.functional as F\ndef loss(outputs, batch):\n    "


CASES: dict[str, tuple[dict[str, Any], dict[str, str], list[str]]] = {
    "a loss per sample": (
        {},
        {"loss.py": LOSS + "return F.cross_entropy(outputs, batch['label'], reduction='none')"},
        ["loss.py:loss", "no scalar", "shape [8]"],
    ),
    "a number": ({}, {"loss.py": LOSS + "return 3.0"}, ["no scalar", "float"]),
    "a loss without the model": (
        {},
        {"loss.py": LOSS + "return torch.zeros(())"},
        ["no scalar", "without a gradient"],
    ),
    "NaN at the first step": (
        {},
        {"loss.py": LOSS + "return (outputs * float('nan')).mean()"},
        ["is nan at the first"],
    ),
    "a loss that raises": (
        {},
        {"loss.py": LOSS + "return batch['lable'].sum()"},
        ["loss.py:4", "KeyError"],
    ),
    "parameters without a gradient": (
        {},
        {
            "loss.py": LOSS + "return outputs.detach().mean() + 0 * outputs.sum()",
            "digits_train.py": "        self.unused = nn.Linear(3, 4)\n",
        },
        ["2 parameters get no gradient: unused.weight, unused.bias"],
    ),
    "another dtype than declared": (
        {"train": {"batches": "data.py:batches"}},
        {
            "data.py": "import numpy as np\ndef batches():\n"
            "    yield {'image': np.zeros((16, 8, 8)), 'label': np.zeros(16, np.int64)}\n"
        },
        ["inputs.image", "float32", "float64"],
    ),
    "another size than declared": (
        {"train": {"batches": "data.py:batches"}},
        {
            "data.py": "import numpy as np\ndef batches():\n"
            "    image = np.zeros((16, 9, 8), np.float32)\n"
            "    yield {'image': image, 'label': np.zeros(16, np.int64)}\n"
        },
        ["inputs.image", "[16, 9, 8]"],
    ),
    "batches without a seed": (
        {"train": {"batches": "data.py:batches"}},
        {
            "data.py": "import numpy as np\ndef batches():\n    yield {'image': "
            "np.random.default_rng().random((16, 8, 8), np.float32), "
            "'label': np.zeros(16, np.int64)}\n"
        },
        ["other batches when it is started again", "another 'image'", "seed"],
    ),
    "a loss that draws its own numbers": (
        {},
        {"loss.py": "import random\n" + LOSS + "return random.random() * outputs.mean()"},
        ["gives another loss when it is taken again"],
    ),
    "a forward that raises in training": (
        {},
        {
            "digits_train.py": "        self.register_forward_pre_hook(\n            "
            "lambda m, a: None if 1 / (not m.training) else None)\n"
        },
        ["digits_train.py", "the plain step with loss"],
    ),
    "a server": ({"deploy": {"triton": {}}}, {}, ["`deploy` serves inference engines"]),
    "a pass on engines": (
        {"passes": [{"quantize": {"method": "dynamic"}}]},
        {},
        ["passes[0]", "'quantize' can't run in workload 'training'"],
    ),
    "a data worker that dies": (
        {"train": {"batches": "data.py:batches", "workers": 1}},
        {
            "data.py": "import os\nclass Images:\n    def __len__(self):\n        return 20\n"
            "    def __getitem__(self, index):\n        os._exit(3)\n"
            "batches = Images()\n"
        },
        ["train.workers", "a worker process of train.batches 'data.py:batches' died", "workers: 0"],
    ),
    "a sample that raises in a worker": (
        {"train": {"batches": "data.py:batches", "workers": 1}},
        {
            "data.py": "class Images:\n    def __len__(self):\n        return 20\n"
            "    def __getitem__(self, index):\n        return {'image': images[index]}\n"
            "batches = Images()\n"
        },
        ["data.py:5", "NameError", "images"],
    ),
    "no such loss": ({"train": {"loss": "digits_train.py:lost"}}, {}, ["lost", "did you mean"]),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said_before_anything_is_built(case: str, tmp_path: Path) -> None:
    changes, files, words = CASES[case]
    given = dict(changes)
    if "loss.py" in files:
        given["train"] = {"loss": "loss.py:loss", **given.get("train", {})}
    path = spec_of(tmp_path, **given)
    for name, text in files.items():
        if name == "digits_train.py":
            whole = (tmp_path / name).read_text()
            text = whole.replace("        self.head = ", text + "        self.head = ")
        (tmp_path / name).write_text(text)
    with pytest.raises(MegacompileError) as caught:
        build(tmp_path, path)
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "report").exists()


def test_what_the_target_cannot_do_is_said_before_anything_runs(tmp_path: Path) -> None:
    path = spec_of(
        tmp_path,
        target={"isa": ["avx2"]},
        passes=[{"mixed-precision": {"dtype": "float16"}}, {"offload-activations": {}}],
    )
    with pytest.raises(MegacompileError) as caught:
        build(tmp_path, path)
    for words in ("does not compute in float16", "bfloat16", "activations of a CPU", "passes"):
        assert words in str(caught.value)
    assert not (tmp_path / "report").exists()
