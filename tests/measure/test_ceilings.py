"""The roofline's arithmetic, and that the measuring runs; no figure is asserted."""

from __future__ import annotations

import pytest

from megacompile.measure import ceilings
from megacompile.measure.ceilings import least_time

RATES = {"float32": 1e11, "int8": 8e11}


def test_the_slower_of_arithmetic_and_memory_sets_the_floor():
    assert least_time(1e9, 1e6, RATES, 1e10, "float32") == (pytest.approx(10.0), "compute")
    assert least_time(1e9, 1e9, RATES, 1e10, "float32") == (pytest.approx(100.0), "memory")


@pytest.mark.parametrize("dtype", ["int8", "uint8", "i8", "float8", "float16"])
def test_a_dtype_without_a_rate_gets_the_fastest_so_the_floor_stays_one(dtype):
    assert least_time(8e11, 0, RATES, 1e10, dtype)[0] == pytest.approx(1000.0)


@pytest.mark.parametrize(("rates", "bandwidth"), [({}, 1e10), (RATES, 0), ({"float32": 0}, 1)])
def test_rates_that_make_no_sense_are_refused(rates, bandwidth):
    with pytest.raises(ValueError, match="above 0"):
        least_time(1, 1, rates, bandwidth, "float32")


def test_the_largest_cache_is_read(tmp_path):
    for index, size in enumerate(("32K", "1024K", "96M", "odd")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert ceilings.last_level_cache(tmp_path) == 96 * 2**20
    assert ceilings.last_level_cache(tmp_path / "none") == 0


def test_measuring_gives_positive_figures_and_puts_the_threads_back(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(ceilings, "_SIZES", (256,))
    monkeypatch.setattr(ceilings, "_REPEATS", 1)
    monkeypatch.setattr(ceilings, "_LEAST_SECONDS", 0.0)
    monkeypatch.setattr(ceilings, "_SMALLEST_ARRAY", 2**20)
    monkeypatch.setattr(ceilings, "_LARGEST_ARRAY", 2**20)
    before = torch.get_num_threads()
    found = ceilings.measure_ceilings(1)
    assert torch.get_num_threads() == before
    assert "float32" in found.rates
    assert all(rate > 0 for rate in found.rates.values())
    assert found.bandwidth > 0


def test_a_dtype_without_a_kernel_has_no_rate(monkeypatch):
    pytest.importorskip("torch")

    def rate(maker, least):
        if least:
            raise RuntimeError("not implemented for 'Half'")
        return 1e9

    monkeypatch.setattr(ceilings, "_best_rate", rate)
    assert ceilings._rates() == {"float32": 1e9}


def test_an_emulated_dtype_is_left_out(monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(ceilings, "_best_rate", lambda maker, least: 1e7 if least else 1e9)
    assert ceilings._rates() == {"float32": 1e9}
