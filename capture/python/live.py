"""Live view: shows a changefeed in a notebook's cell while the cell runs, and plots its lag.

The widget is made with anywidget, the plot with matplotlib; both are installed by the extra "notebook" only, so they
are imported when they are used.
"""

import time
from functools import cache
from itertools import islice
from typing import Any

from capture.errors import ConfigError
from capture.python.samples import Samples
from reactor.records.changefeed import FeedState
from reactor.views import ChangefeedView

#: states that a changefeed never leaves
_OVER = (FeedState.FINISHED, FeedState.REMOVED)
#: points of the widget's curve
_POINTS = 120
_STAGES = ("source", "log", "flush", "sink", "barrier")

# All text is set as text, never as HTML: names of tables and messages come from outside.
_ESM = """
const NS = "http://www.w3.org/2000/svg";
function element(parent, name, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}
function row(table, name, text) {
  const line = element(table, "tr");
  element(line, "th", name).style.textAlign = "left";
  element(line, "td", text).style.textAlign = "left";
}
function curve(parent, lags) {
  const known = lags.filter((lag) => lag !== null);
  if (known.length < 2) return;
  const top = Math.max(...known, 1), step = 300 / (lags.length - 1);
  const svg = document.createElementNS(NS, "svg"), line = document.createElementNS(NS, "polyline");
  svg.setAttribute("viewBox", "0 0 300 50");
  svg.setAttribute("width", "300");
  svg.setAttribute("height", "50");
  line.setAttribute("fill", "none");
  line.setAttribute("stroke", "currentColor");
  const points = lags.map((lag, at) => (lag === null ? null : `${at * step},${49 - (48 * lag) / top}`));
  line.setAttribute("points", points.filter((point) => point !== null).join(" "));
  svg.append(line);
  parent.append(svg);
}
function render({ model, el }) {
  const draw = () => {
    const shown = model.get("shown");
    el.replaceChildren();
    element(el, "strong", shown.title ?? "");
    const table = element(el, "table");
    for (const [name, text] of shown.rows ?? []) row(table, name, text);
    curve(el, shown.lags ?? []);
  };
  model.on("change:shown", draw);
  draw();
}
export default { render };
"""


def check_interval(every: float) -> None:
    """:raises ConfigError: it is not positive."""
    if not every > 0:
        raise ConfigError(f"every is {every!r}; it takes seconds greater than 0")


class Live:
    """The widget of one running cell. ``seconds``: how long it runs; None: until the changefeed is over."""

    def __init__(self, changefeed: str, seconds: float | None) -> None:
        self._changefeed = changefeed
        self._deadline = float("inf") if seconds is None else time.monotonic() + seconds
        self._widget = _widget_class()()
        _module("IPython.display").display(self._widget)

    def show(self, view: ChangefeedView, samples: Samples) -> bool:
        """Show ``view``; return whether to continue."""
        is_running = time.monotonic() < self._deadline and view.state not in _OVER
        self._widget.shown = shown(view, samples, is_running=is_running)
        return is_running

    def end(self, view: ChangefeedView | None, samples: Samples) -> None:
        """Show that the cell has ended."""
        if view is not None:
            self._widget.shown = shown(view, samples, is_running=False)


def shown(view: ChangefeedView, samples: Samples, *, is_running: bool) -> dict[str, Any]:
    """Return what the widget displays: ``title``, ``rows`` of (name, text), ``lags`` in seconds, oldest first."""
    rows = [("state", str(view.state)), ("checkpoint", str(view.checkpoint_ts)), ("lag", _seconds(view.lag_seconds))]
    rows += [(f"lag: {stage}", _seconds(lag)) for stage in _STAGES if (lag := getattr(view.lag, stage)) is not None]
    if (rate := samples.rows_per_second()) is not None:
        rows.append(("row changes per second", f"{rate:,.0f}"))
    if view.rows_done < view.rows_total:
        left = "" if view.seconds_left is None else f", {view.seconds_left:.0f} s left"
        rows.append(("snapshot", f"{view.rows_done:,} of about {view.rows_total:,} rows{left}"))
    rows += [(f"held: {held.table}", f"{held.stage}: {held.message}") for held in view.held]
    rows += [(f"copied again: {resync.table}", str(resync.stage)) for resync in view.resyncs]
    rows += [("reason", text) for text in _reasons(view)]
    past = list(islice(reversed(list(samples)), _POINTS))
    return {
        "title": f"changefeed {view.id}{'' if is_running else ' (no longer updated)'}",
        "rows": [list(row) for row in rows],
        "lags": [sample.lag_seconds for sample in reversed(past)],
    }


def plot_lag(changefeed: str, samples: Samples, axes: Any = None) -> Any:
    """Plot the lag of ``samples`` into ``axes`` (None: new ones); return the axes.

    :raises ConfigError: matplotlib is not installed.
    """
    if axes is None:
        axes = _module("matplotlib.pyplot").subplots()[1]
    known = [(sample.time, sample.lag_seconds) for sample in samples if sample.lag_seconds is not None]
    begun = known[0][0] if known else 0.0
    axes.plot([at - begun for at, _ in known], [lag for _, lag in known])
    axes.set(title=f"lag of {changefeed}", xlabel="seconds", ylabel="lag in seconds")
    axes.set_ylim(bottom=0)
    return axes


def _reasons(view: ChangefeedView) -> list[str]:
    found = [error.message for error in (view.error, view.warning) if error is not None]
    return found or [view.blocked_by][: bool(view.blocked_by)]


def _seconds(value: float | None) -> str:
    return "not known yet" if value is None else f"{value:.1f} s"


@cache
def _widget_class() -> Any:
    anywidget, traitlets = _module("anywidget"), _module("traitlets")
    members = {"__module__": __name__, "_esm": _ESM, "shown": traitlets.Dict().tag(sync=True)}
    return type("ChangefeedWidget", (anywidget.AnyWidget,), members)


def _module(name: str) -> Any:
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        package = name.partition(".")[0]
        raise ConfigError(f"{package} is not installed; pip install 'weir-cdc[notebook]'") from None
