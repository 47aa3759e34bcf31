"""Which distributions are installed."""

from __future__ import annotations

from importlib.metadata import version

from megacompile.system import libraries


def test_versions_leave_out_what_is_not_installed() -> None:
    assert list(libraries.installed(["pytest", "no-such-distribution"])) == ["pytest"]


def test_a_version_is_that_of_the_distribution() -> None:
    assert libraries.installed(["pytest"]) == {"pytest": version("pytest")}
    found = libraries.installed()
    assert found["torch"] == version("torch")
    assert set(found) <= set(libraries.LIBRARIES)


def test_what_is_missing_is_told_in_the_order_asked() -> None:
    assert libraries.missing(["zz-none", "pytest", "aa-none"]) == ["zz-none", "aa-none"]
    assert libraries.missing([]) == []
