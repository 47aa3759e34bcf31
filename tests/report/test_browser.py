"""The page in a real browser: it fits a phone, and it asks the network for nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from megacompile.report.html import render_html
from megacompile.report.model import Report

from . import samples

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PHONE = 400
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--virtual-time-budget=3000",
]
# A window may not be as narrow as a phone, so the page is measured in a frame that is. The
# frame's document is same-origin because it is given inline.
PROBE = """<!doctype html><meta charset="utf-8"><body>
<iframe id="phone" style="border:0;width:{width}px;height:3000px"></iframe><output></output>
<script>
const frame = document.getElementById("phone");
frame.onload = () => {{
  const page = frame.contentDocument;
  page.querySelectorAll("details").forEach(one => one.open = true);
  const root = page.documentElement;
  const loaded = frame.contentWindow.performance.getEntriesByType("resource").length;
  const clear = one => one.closest(".scroll, pre");
  const wide = [...page.body.querySelectorAll("*")].filter(
    one => !clear(one) && one.getBoundingClientRect().right > {width} + 0.5);
  document.querySelector("output").textContent = "width=" + root.scrollWidth
    + " wide=" + wide.length + " loaded=" + loaded + " height=" + root.scrollHeight
    + " first=" + (wide[0] ? wide[0].outerHTML.slice(0, 80) : "none");
}};
frame.srcdoc = {page};
</script>"""

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium or google-chrome on the path")


def browse(page: Path, folder: Path, *options: str) -> str:
    """What chromium prints for a page, with a profile of its own."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def quoted(page: str) -> str:
    """The page as a JavaScript string that no tag inside it can end."""
    import json

    return json.dumps(page).replace("<", "\\u003c")


@pytest.mark.parametrize(
    "factory",
    [samples.sample_report, samples.large_report, samples.hostile_report, samples.failed_report],
)
def test_page_fits_a_phone_and_loads_nothing(factory: Callable[[], Report], tmp_path: Path) -> None:
    probe = tmp_path / "probe.html"
    probe.write_text(
        PROBE.format(width=PHONE, page=quoted(render_html(factory()))), encoding="utf-8"
    )
    shown = browse(probe, tmp_path, "--window-size=900,3200", "--dump-dom")
    found = re.search(r"width=(\d+) wide=(\d+) loaded=(\d+) height=(\d+) first=(.*)", shown)
    assert found, shown[-2000:]
    width, wide, loaded, height = map(int, found.groups()[:4])
    assert width <= PHONE, found.group(0)
    assert wide == 0, found.group(0)
    assert loaded == 0
    assert height > 800


def test_screenshot_is_taken(tmp_path: Path) -> None:
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    page.write_text(render_html(samples.sample_report()), encoding="utf-8")
    browse(page, tmp_path, f"--screenshot={picture}", "--window-size=400,2000")
    assert picture.read_bytes().startswith(b"\x89PNG")
