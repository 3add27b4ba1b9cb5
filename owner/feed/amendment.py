"""Amendment: checks and makes operators' changes to an existing changefeed's configuration and position.

Refused is what the state does not allow, and what would have no effect: which tables are replicated, and through which
slot, is settled when their snapshot is taken. Whether source and sink can live with the change is for the caller to ask
them first; a sink that records its own Ts continues from there whatever the position here says.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from owner.errors import JobRefusedError
from owner.jobs import Update
from owner.progress.facts import Facts
from owner.progress.units import goes_on
from owner.tables import repartition
from reactor.ids import Ts
from reactor.records.changefeed import (
    ChangefeedConfig,
    ChangefeedInfo,
    ChangefeedStatus,
    FeedState,
    FilterConfig,
    Mode,
    SealedUri,
)
from reactor.records.source_settings import STORED_FLAT

#: ``finished`` does not run either, but what has finished can only be looked at again, or continue in another mode
UPDATABLE = (FeedState.STOPPED, FeedState.FAILED)
REWINDABLE = (FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED)

#: keys of the configuration that count only until the tables are known
_SETTLED_BY_SNAPSHOT = (
    "filter.rules",
    "force_replicate",
    "source",
    "source.slot",
    "source.publication",
    "dump_chunk_rows",
)


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, as people read it; secrets are masked."""

    field: str
    before: str
    after: str


def updated(facts: Facts, change: Update) -> ChangefeedInfo:
    """The changefeed with ``change``.

    :raises JobRefusedError: its state does not allow it, or it would have no effect.
    """
    info = facts.info
    if change.mode not in (None, info.mode):
        _refuse_mode(facts, change.mode)
    elif info.state not in UPDATABLE:
        raise JobRefusedError(f"changefeed {info.id} is {info.state}: update is not possible{_cure(info.state)}")
    if change.config is not None and facts.record is not None:
        _refuse_settled(info, change.config)
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
    return info.with_(**after)


def differences(before: ChangefeedInfo, after: ChangefeedInfo) -> tuple[Difference, ...]:
    """What a user sees change."""
    found = [*_uri("source", before.source, after.source), *_uri("sink", before.sink, after.sink)]
    if before.mode != after.mode:
        found.append(Difference("mode", before.mode, after.mode))
    if before.target_ts != after.target_ts:
        found.append(Difference("target_ts", _shown(before.target_ts), _shown(after.target_ts)))
    old, new = dict(_settings(before.config)), dict(_settings(after.config))
    return (*found, *(Difference(f"config.{name}", old[name], new[name]) for name in old if old[name] != new[name]))


def rewound(facts: Facts, ts: Ts) -> ChangefeedStatus:
    """The status with the changefeed continuing from ``ts``, back or within what has been read.

    :raises JobRefusedError: the log does not reach from there to here.
    """
    repartition.refuse_while_repartitioning(facts)
    info, status, head = facts.info, facts.status, facts.head
    known = max(status.checkpoint_ts, head.resolved_ts if head else Ts(0))
    if ts > known:
        raise JobRefusedError(
            f"changefeed {info.id} has read up to {known}: starting at {ts} would lose changes; give a smaller Ts"
        )
    first = max(head.removed_ts if head else Ts(0), facts.record.start_ts if facts.record else info.start_ts)
    if ts < first:
        raise JobRefusedError(
            f"the log of changefeed {info.id} reaches back to {first} only, not to {ts}: give a larger Ts, "
            "or create another changefeed for a new snapshot"
        )
    return status.with_(checkpoint_ts=ts, checkpoint_time=0.0, min_table_barrier_ts=ts)


def refuse_rewind(facts: Facts, ts: Ts) -> None:
    """:raises JobRefusedError: it is not stopped, has nothing to go back to, or is not past ``ts``."""
    info, status = facts.info, facts.status
    if info.state not in REWINDABLE:
        raise JobRefusedError(f"changefeed {info.id} is {info.state}: rewind is not possible{_cure(info.state)}")
    if facts.tables is None:
        raise JobRefusedError(f"changefeed {info.id} has not replicated anything yet: there is nothing to go back to")
    if ts >= status.checkpoint_ts:
        raise JobRefusedError(f"changefeed {info.id} is at {status.checkpoint_ts}: {ts} is not before that; resume it")


def _refuse_mode(facts: Facts, mode: Mode) -> None:
    """A dump that has finished can be loaded, and what was loaded can be followed."""
    info, record = facts.info, facts.record
    if info.state is not FeedState.FINISHED or record is None:
        raise JobRefusedError(
            f"changefeed {info.id} is {info.state}: its mode ({info.mode}) can be changed when it has finished"
        )
    if not goes_on(mode, record):
        raise JobRefusedError(
            f"changefeed {info.id} has finished in mode {info.mode}: mode {mode} cannot continue from there; create "
            "another one"
        )


def _refuse_settled(info: ChangefeedInfo, config: ChangefeedConfig) -> None:
    old, new = dict(_settings(info.config)), dict(_settings(config))
    for name in _SETTLED_BY_SNAPSHOT:
        if old[name] != new[name]:
            raise JobRefusedError(
                f"{name.replace('_', '-')} of changefeed {info.id} was settled when its snapshot began (it is "
                f"{old[name] or 'empty'}): create another changefeed, or leave it as it is"
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
    """The same URI sealed again differs too: the caller leaves that out."""
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
        elif name in STORED_FLAT:
            yield f"source.{name}", _shown(value)
        elif isinstance(value, dict):
            yield name, ", ".join(f"{key} = {_shown(item)}" for key, item in sorted(value.items()))
        else:
            yield name, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return "none" if value is None else str(value)


def _cure(state: FeedState) -> str:
    match state:
        case FeedState.FINISHED:
            return "; it has finished: let it continue in another mode, or create another one"
        case FeedState.REMOVED:
            return "; it is being removed"
        case _:
            return "; pause it first"
