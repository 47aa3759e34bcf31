"""Messages of libraries: their first line, and the user's code that they point at."""

from __future__ import annotations

from pathlib import Path

import pytest
from megacompile_passes.convert.agreement import sizes_text
from megacompile_passes.messages import first_line, user_frame


def test_a_message_keeps_its_kind_and_first_line() -> None:
    assert first_line(ValueError("\n  bad shape\nsecond line")) == "ValueError: bad shape"
    assert first_line(KeyError()) == "KeyError"


def test_a_place_is_never_in_our_own_code() -> None:
    with pytest.raises(AttributeError) as caught:
        sizes_text(None)  # type: ignore[arg-type]
    file, line = str(user_frame(caught.value)).rsplit(":", 1)
    assert Path(file) == Path(__file__)
    assert line.isdigit()
