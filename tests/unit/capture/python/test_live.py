"""Live view: what the widget shows, and the throughput of the answers."""

import pytest

from capture.errors import ConfigError
from capture.python import live
from capture.python.samples import KEPT, Samples
from reactor.records.changefeed import FeedState, RunningError
from reactor.views import ChangefeedView, HeldView, LagStages


def view(*, changes: int = 0, lag: float | None = 0.5, **fields: object) -> ChangefeedView:
    return ChangefeedView.model_validate(
        {"id": "shop", "state": FeedState.NORMAL, "changes": changes, "lag_seconds": lag} | fields
    )


def samples(*changes: int, every: float = 1.0) -> Samples:
    found = Samples()
    for number, count in enumerate(changes):
        found.add(view(changes=count), now=100.0 + number * every)
    return found


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ((), None),
        ((10,), None),
        ((10, 30), 20.0),
        ((0, 0, 0, 0, 0, 0, 100), 20.0),  # over the last five seconds
        ((900, 1000, 0, 40), 40.0),  # another owner counts from 0
        ((1000, 0), None),
    ],
)
def test_throughput(changes: tuple[int, ...], rate: float | None) -> None:
    assert samples(*changes).rows_per_second() == rate


def test_an_hour_is_kept() -> None:
    assert len(samples(*range(KEPT + 10))) == KEPT


def rows_of(seen: ChangefeedView, past: Samples | None = None) -> dict[str, str]:
    rows = live.shown(seen, past or Samples(), is_running=True)["rows"]
    assert all(isinstance(text, str) for row in rows for text in row)  # what a message to the browser can carry
    return {str(name): str(text) for name, text in rows}


def test_all_that_does_not_flow_is_shown_with_its_reason() -> None:
    held = HeldView(table="public.item", table_id=1, stage="held", message="no key")
    error = RunningError(code="Held", message="public.item is held")
    rows = rows_of(view(held=(held,), warning=error, blocked_by="something else"))
    assert rows["held: public.item"] == "held: no key"
    assert rows["reason"] == "public.item is held"
    assert rows_of(view(blocked_by="the source is silent"))["reason"] == "the source is silent"
    assert "reason" not in rows_of(view())


def test_stages_that_are_known_are_shown() -> None:
    rows = rows_of(view(lag=None))
    assert rows["lag"] == "not known yet"
    rows = rows_of(ChangefeedView(id="shop", state=FeedState.NORMAL, lag_seconds=2.0, lag=LagStages(flush=1.5)))
    assert rows["lag: flush"] == "1.5 s"
    assert "lag: source" not in rows


def test_the_snapshot_is_shown_until_it_is_finished() -> None:
    rows = rows_of(view(rows_total=2000, rows_done=500, seconds_left=3.0), samples(0, 2000))
    assert rows["snapshot"] == "500 of about 2,000 rows, 3 s left"
    assert rows["row changes per second"] == "2,000"
    assert "snapshot" not in rows_of(view(rows_total=2000, rows_done=2000))


def test_the_curve_has_the_newest_lags_oldest_first() -> None:
    past = Samples()
    for number in range(500):
        past.add(view(lag=float(number)), now=float(number))
    assert live.shown(view(), past, is_running=True)["lags"] == [float(number) for number in range(380, 500)]


def test_the_title_says_that_the_cell_has_ended() -> None:
    assert live.shown(view(), Samples(), is_running=False)["title"] == "changefeed shop (no longer updated)"


@pytest.mark.parametrize("every", [0.0, -1.0, float("nan")])
def test_an_interval_is_positive(every: float) -> None:
    with pytest.raises(ConfigError, match="greater than 0"):
        live.check_interval(every)


def test_a_missing_package_is_named_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.pyplot", None)
    with pytest.raises(ConfigError, match=r"matplotlib is not installed; pip install 'weir-cdc\[notebook\]'"):
        live.plot_lag("shop", Samples())


def test_the_lag_is_plotted() -> None:
    from matplotlib.figure import Figure

    past = Samples()
    for number, lag in enumerate((0.5, None, 2.0)):
        past.add(view(lag=lag), now=100.0 + number)
    axes = live.plot_lag("shop", past, Figure().subplots())
    [line] = axes.lines
    assert list(zip(*line.get_data(), strict=True)) == [(0.0, 0.5), (2.0, 2.0)]
