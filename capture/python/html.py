"""Results as HTML for notebooks, and as texts."""

from collections.abc import Iterable, Sequence
from html import escape

from capture.api.requests.shown import one_line
from reactor.views import ChangefeedView

__all__ = ["changefeeds", "described", "escape", "one_line", "rows"]


def changefeeds(views: Sequence[ChangefeedView]) -> str:
    """Return a table of changefeeds, with the reason of what does not flow."""
    names = ("changefeed", "state", "checkpoint", "lag", "tables", "source", "sink", "reason")
    return rows(names, (_cells(view) for view in views))


def rows(names: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Return a table; every text is escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cells(view: ChangefeedView) -> tuple[object, ...]:
    lag = "" if view.lag_seconds is None else f"{view.lag_seconds:.1f} s"
    reason = next((error.message for error in (view.error, view.warning) if error), view.blocked_by)
    return (
        view.id,
        view.state,
        view.checkpoint_ts,
        lag,
        view.table_count or len(view.tables),
        view.source,
        view.sink,
        reason,
    )


def described(view: ChangefeedView | None) -> str:
    """Return state, lag and tables for a repr; empty if nothing is known."""
    if view is None:
        return ""
    lag = "" if view.lag_seconds is None else f", lag {view.lag_seconds:.1f} s"
    held = f", {len(view.held)} held" if view.held else ""
    error = f": {view.error.message}" if view.error else ""
    return f": {view.state}{lag}, {view.table_count or len(view.tables)} tables{held}{error}"
