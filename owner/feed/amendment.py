"""Amendment: validates and applies operators' changes to an existing changefeed's configuration and position.

Changes that the state does not allow, or that would have no effect, are refused: the slot is fixed by the snapshot, and
so are the tables until the log is followed; from then on another filter makes tables leave and join. The caller first
checks that source and sink can accept the change; a sink that records its own Ts continues from there whatever position
is set here.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from owner.errors import JobRefusedError, StaleRequestError
from owner.feed.state import is_running
from owner.jobs import Basis, Update
from owner.progress.facts import Facts
from owner.progress.units import can_continue
from reactor.ids import Ts
from reactor.records.base import UserConfig
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    FeedState,
    FilterConfig,
    Mode,
    SealedUri,
    Unit,
)
from reactor.records.source_settings import STORED_FLAT
from reactor.state import ChangefeedState

UPDATABLE = (FeedState.STOPPED, FeedState.FAILED)

#: configuration keys that have no effect once the tables are known
_SETTLED_BY_SNAPSHOT = (
    "filter.rules",
    "force_replicate",
    "source",
    "source.slot",
    "source.publication",
    "dump_chunk_rows",
)
#: configuration keys by which the snapshot's rows are filtered: not by two settings in one snapshot
_OF_ROWS = ("filter.event_filters", "filter.column_selectors")


@dataclass(frozen=True, slots=True)
class Difference:
    """One changed field for display; secrets are masked."""

    field: str
    before: str
    after: str


def existing(feed: ChangefeedState) -> ChangefeedInfo:
    """Return the changefeed's info.

    :raises JobRefusedError: it cannot be read.
    """
    if feed.info is None:
        raise JobRefusedError(f"changefeed {feed.id} has no readable info; repair or delete its keys")
    return feed.info


def updated(facts: Facts, change: Update) -> ChangefeedInfo:
    """Return the changefeed with ``change`` applied.

    :raises StaleRequestError: it was made of other records.
    :raises JobRefusedError: its state does not allow it, or it would have no effect.
    """
    info = facts.info
    _refuse_stale(facts, change)
    if change.mode not in (None, info.mode):
        _refuse_mode(facts, change.mode)
    elif info.state not in UPDATABLE and not (is_running(info.state) and _is_of_filter(info, change)):
        raise JobRefusedError(f"changefeed {info.id} is {info.state}: update is not possible{cure(info.state)}")
    if change.config is not None and facts.record is not None:
        _refuse_settled(facts, change.config, is_moved=change.joining is not None)
    _refuse_joining(facts, change)
    changes: dict[str, object] = {
        "source": change.source,
        "sink": change.sink,
        "mode": change.mode,
        "config": change.config and change.config.keeping(info.config),
    }
    if change.config is not None and change.config.filter.event_filters != info.config.filter.event_filters:
        changes["was_filtered"] = info.was_filtered or bool(info.config.filter.event_filters)
    if change.target_ts is not None:
        changes["target_ts"] = _target(facts, change.target_ts)
    after = {name: value for name, value in changes.items() if value is not None or name == "target_ts"}
    if is_running(info.state):
        after["epoch"] = info.epoch + 1  # whatever runs begins again, with the new filter
    return info.with_(**after)


def differences(before: ChangefeedInfo, after: ChangefeedInfo) -> tuple[Difference, ...]:
    """Return the visible differences."""
    found = [*_uri("source", before.source, after.source), *_uri("sink", before.sink, after.sink)]
    if before.mode != after.mode:
        found.append(Difference("mode", before.mode, after.mode))
    if before.target_ts != after.target_ts:
        found.append(Difference("target_ts", _shown(before.target_ts), _shown(after.target_ts)))
    old, new = dict(_settings(before.config)), dict(_settings(after.config))
    return (*found, *(Difference(f"config.{name}", old[name], new[name]) for name in old if old[name] != new[name]))


def _refuse_mode(facts: Facts, mode: Mode) -> None:
    """A finished dump can be loaded, and a loaded snapshot can be followed by sync."""
    info, record = facts.info, facts.record
    if info.state is not FeedState.FINISHED or record is None:
        raise JobRefusedError(
            f"changefeed {info.id} is {info.state}: its mode ({info.mode}) can be changed when it has finished"
        )
    if not can_continue(mode, record):
        raise JobRefusedError(
            f"changefeed {info.id} has finished in mode {info.mode}: mode {mode} cannot continue from there; create "
            "another one"
        )


def _refuse_settled(facts: Facts, config: ChangefeedConfig, *, is_moved: bool) -> None:
    """While the log is followed, other rules are not too late, if it is known which tables they move; nor are other
    filters of rows and columns."""
    info, is_followed = facts.info, facts.unit is Unit.SYNC and facts.record is not None
    old, new = dict(_settings(info.config)), dict(_settings(config))
    open_ones = {"filter.rules"} if is_followed and is_moved else set()
    for name in (*_SETTLED_BY_SNAPSHOT, *(() if is_followed else _OF_ROWS)):
        if old[name] != new[name] and name not in open_ones:
            later = ", or change it when the log is followed" if name in (*_OF_ROWS, "filter.rules") else ""
            raise JobRefusedError(
                f"{name.replace('_', '-')} of changefeed {info.id} was settled when its snapshot began (it is "
                f"{old[name] or 'empty'}): create another changefeed, or leave it as it is{later}"
            )


def _is_of_filter(info: ChangefeedInfo, change: Update) -> bool:
    """Return whether nothing else changes."""
    others = (change.source, change.sink, change.target_ts)
    is_alone = change.config is not None and others == (None, None, None)
    return is_alone and change.config.with_(filter=info.config.filter) == info.config  # type: ignore[union-attr]


def _refuse_stale(facts: Facts, change: Update) -> None:
    """:raises StaleRequestError: the records are not those that it was made of."""
    if change.basis not in (None, Basis.of(facts.info.config, facts.record, facts.pending_ddl)):
        raise StaleRequestError(f"changefeed {facts.info.id} has changed meanwhile; ask again")


def _refuse_joining(facts: Facts, change: Update) -> None:
    """:raises JobRefusedError: a copy of the tables that join would be of a later Ts than the changefeed's last, or one
    has the name of a table that is still there.
    """
    if change.joining and facts.info.target_ts is not None:
        raise JobRefusedError(
            f"changefeed {facts.info.id} ends at target {facts.info.target_ts}, and copies of tables that join would "
            "be of a later Ts; remove the target first (changefeed update --target-ts 0)"
        )
    there = {(one.schema_name, one.name) for one in facts.tables or () if one.table_id not in change.leaving}
    asked_before = facts.record.joining if facts.record else ()
    if taken := sorted(there.intersection(change.joining or ()).difference(asked_before)):
        raise JobRefusedError(
            f"changefeed {facts.info.id} has another table {'.'.join(taken[0])}, which was dropped or renamed at the "
            "source; wait until the sink has that change, then ask again"
        )


def _target(facts: Facts, target_ts: Ts) -> Ts | None:
    if not target_ts:
        return None
    if target_ts < facts.status.checkpoint_ts:
        raise JobRefusedError(
            f"changefeed {facts.info.id} is at {facts.status.checkpoint_ts}, past the target {target_ts}; "
            "give a larger one, or 0 for none"
        )
    return target_ts


def _uri(field: str, before: SealedUri, after: SealedUri) -> Iterator[Difference]:
    """The same URI sealed again differs too: the caller omits it."""
    if before == after:
        return
    if before.masked == after.masked:
        yield Difference(field, before.masked, f"{after.masked} (another secret)")
    else:
        yield Difference(field, before.masked, after.masked)


def _settings(config: ChangefeedConfig) -> Iterator[tuple[str, str]]:
    for name in ChangefeedConfig.model_fields:
        value = getattr(config, name)
        if isinstance(value, FilterConfig):
            yield "filter.rules", ", ".join(value.rules)
            yield "filter.event_filters", _listed(value.event_filters)
            yield "filter.column_selectors", _listed(value.column_selectors)
        elif name == "layout":
            yield name, _listed(config.layout)
        elif name in STORED_FLAT:
            yield f"source.{name}", _shown(value)
        elif isinstance(value, dict):
            yield name, ", ".join(f"{key} = {_shown(item)}" for key, item in sorted(value.items()))
        else:
            yield name, _shown(value)


def _listed(items: Sequence[UserConfig]) -> str:
    return "; ".join(item.model_dump_json(exclude_defaults=True) for item in items) or "none"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def cure(state: FeedState) -> str:
    """Return what lets a refused change of a changefeed in this state be made, as the end of a sentence."""
    match state:
        case FeedState.FINISHED:
            return "; it has finished: let it continue in another mode, or create another one"
        case FeedState.REMOVED:
            return "; it is being removed"
        case _:
            return "; pause it first"
