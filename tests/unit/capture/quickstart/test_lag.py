"""The lag meter: what one move of a checkpoint says about the commits it covers."""

import pytest

from capture.quickstart.lag import LagMeter


def test_commits_between_two_checkpoints_have_lags_between_theirs() -> None:
    meter = LagMeter(since=100.0)
    meter.observe(now=112.0, checkpoint_time=110.0)
    assert meter.percentile_ms(50) == pytest.approx(7000, abs=300)
    assert meter.percentile_ms(99) == pytest.approx(12000, abs=300)
    assert meter.percentile_ms(0) == pytest.approx(2000, abs=300)


def test_each_move_weighs_what_it_covers() -> None:
    meter = LagMeter(since=100.0)
    meter.observe(now=100.1, checkpoint_time=100.01)
    meter.observe(now=110.01, checkpoint_time=110.01)
    assert meter.percentile_ms(50) == pytest.approx(5000, abs=300)


def test_what_was_there_before_does_not_count() -> None:
    meter = LagMeter(since=100.0)
    meter.observe(now=100.0, checkpoint_time=99.0)
    assert meter.percentile_ms(50) is None
    meter.observe(now=101.5, checkpoint_time=101.0)
    meter.observe(now=500.0, checkpoint_time=101.0)
    assert meter.percentile_ms(100) == pytest.approx(1500, abs=50)


def test_a_clock_that_differs_gives_no_negative_lag() -> None:
    meter = LagMeter(since=100.0)
    meter.observe(now=101.0, checkpoint_time=102.0)
    assert meter.percentile_ms(0) == 0.0
