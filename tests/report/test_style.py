"""The page's colours: every text reads against what is behind it (WCAG AA)."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest

PAIRS = [
    *(
        (text, ground)
        for text in ("ink", "muted", "plain", "base", "good", "bad", "warn")
        for ground in ("page", "card")
    ),
    ("ink", "warn-soft"),
    ("ink", "bad-soft"),
    ("ink", "accent-soft"),
    ("good", "accent-soft"),
    ("good", "good-soft"),
    ("bad", "bad-soft"),
    ("warn", "warn-soft"),
    ("plain", "faint"),
    ("on-accent", "accent"),
    ("page", "plain"),
]


def palettes() -> dict[str, dict[str, str]]:
    css = files("megacompile.report").joinpath("templates/style.css").read_text(encoding="utf-8")
    light, dark, *_ = re.findall(r":root \{(.*?)\}", css, re.DOTALL)
    found = {
        name: dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        for name, block in (("light", light), ("dark", dark))
    }
    assert found["light"].keys() == found["dark"].keys()
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_contrast_is_at_least_four_and_a_half(theme: str, text: str, ground: str) -> None:
    colours = palettes()[theme]
    high, low = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5
