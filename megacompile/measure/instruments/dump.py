"""Every intermediate form, written where the user asked for it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from megacompile.measure.instruments.base import StepRun
from megacompile.system import disk_error


class Dump:
    """Writes `FOLDER/CANDIDATE/NN-PASS-FORM/` after each step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextmanager
    def around(self, run: StepRun) -> Iterator[None]:
        yield
        if run.after is None:
            return
        name = run.record.pass_.rpartition(":")[2]
        target = self.folder / f"{run.number:02d}-{name}-{run.record.form}"
        shutil.rmtree(target, ignore_errors=True)
        try:
            target.mkdir(parents=True)
            run.after.save(target)
        except OSError as error:
            raise disk_error(error, target) from error
