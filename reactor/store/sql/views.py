"""Views: the store's keys as tables that people can read (after the tables of TiCDC's cdcv2 metadata).

    weir_election     the members of each cluster, and which of them is elected
    weir_changefeed   what users created, with masked URIs, and its state
    weir_schedule     which capture owns which changefeed
    weir_progress     how far each changefeed is

They are created beside the tables where the user may do so; nothing depends on them. ``weir_views`` has their version:
a capture replaces those of an older one. Definitions are written once; ``Words`` has what databases call differently.
A value that is no plain JSON (damaged, or stored compressed) shows as NULL.
"""

from collections.abc import Callable
from dataclasses import dataclass

VERSION = 2
#: in the order in which they are dropped: the version first, then those that use others
NAMES = ("weir_views", "weir_progress", "weir_schedule", "weir_changefeed", "weir_election")
READ_VERSION = "SELECT version FROM weir_views"
#: the cluster's format from which on changefeeds have owners of their own (``reactor.records.formats``)
_OWNERS = 11


@dataclass(frozen=True, slots=True)
class Words:
    """Expressions of one dialect. ``part``: of a key between slashes, from 1 on. ``text``, ``number``: a value's JSON
    field as text and as a number with a fraction. ``entry``: a field of a changefeed's entry in a record of progress,
    as text; the changefeed's id is an expression. ``decimal``: a text as a number. ``integer``: of a number.
    ``truth``: 1 or 0. ``time``: a timestamp of Unix seconds. ``before``: what has to be created first."""

    part: Callable[[str, int], str]
    text: Callable[[str, str], str]
    number: Callable[[str, str], str]
    entry: Callable[[str, str, str], str]
    decimal: Callable[[str], str]
    integer: Callable[[str], str]
    truth: Callable[[str, str], str]
    time: Callable[[str], str]
    concat: Callable[..., str]
    before: tuple[str, ...] = ()


def statements(words: Words) -> list[str]:
    """Return what creates all views; of earlier ones nothing must be left."""
    bodies = {
        "weir_election": _election(words),
        "weir_changefeed": _changefeed(words),
        "weir_schedule": _schedule(words),
        "weir_progress": _progress(words),
        "weir_views": f"SELECT {VERSION} AS version",
    }
    return [*words.before, *(f"CREATE VIEW {name} AS {body}" for name, body in bodies.items())]


def drops() -> list[str]:
    return [f"DROP VIEW IF EXISTS {name}" for name in NAMES]


def _election(words: Words) -> str:
    first = words.concat("'/weir/'", words.part("k", 3), "'/__meta__/owner/%'")
    return f"""
        SELECT {words.part("k", 3)} AS cluster, {words.part("k", 6)} AS capture,
            CASE WHEN c.created = (SELECT min(x.created) FROM weir_key x WHERE x.name LIKE {first})
                THEN 1 ELSE 0 END AS is_leader,
            c.created AS revision, {words.text("k", "address")} AS address, {words.text("k", "hostname")} AS hostname,
            {words.text("k", "version")} AS version, {words.time(words.number("k", "started_at"))} AS started_at,
            coalesce({words.truth("k", "is_leaving")}, 0) AS is_leaving, {words.text("k", "fault")} AS fault,
            l.ttl_ms / 1000 AS lease_seconds
        FROM weir_key k
        LEFT JOIN weir_lease l ON l.id = k.lease
        LEFT JOIN weir_key c ON c.lease = k.lease AND c.name LIKE '/weir/%/__meta__/owner/%'
            AND {words.part("c", 3)} = {words.part("k", 3)}
        WHERE k.name LIKE '/weir/%/__meta__/capture/%'"""


def _changefeed(words: Words) -> str:
    texts = {
        "incarnation": "incarnation",
        "state": "state",
        "mode": "mode",
        "sink_mode": "sink_mode",
        "source_uri": "source.masked",
        "sink_uri": "sink.masked",
        "error_code": "error.code",
        "error": "error.message",
        "warning": "warning.message",
    }
    return f"""
        SELECT {_feed_key(words)},
            {", ".join(f"{words.text('k', path)} AS {name}" for name, path in texts.items())},
            {words.integer(words.number("k", "start_ts"))} AS start_ts,
            {words.integer(words.number("k", "target_ts"))} AS target_ts,
            {words.integer(words.number("k", "epoch"))} AS epoch,
            {words.time(words.number("k", "created_at"))} AS created_at,
            {words.time(words.number("k", "state_since"))} AS state_since,
            k.created AS created_revision, k.modified AS modified_revision
        FROM weir_key k WHERE k.name LIKE '/weir/%/%/changefeed/info/%'"""


def _schedule(words: Words) -> str:
    """Before there are owners of single changefeeds, the elected capture owns all."""
    format_key = words.concat("'/weir/'", words.part("k", 3), "'/__meta__/meta/format'")
    is_spread = f"coalesce({words.integer(words.number('f', 'number'))}, 1) >= {_OWNERS}"
    return f"""
        SELECT {_feed_key(words)},
            CASE WHEN o.name IS NOT NULL THEN {words.text("o", "capture")}
                WHEN {is_spread} THEN NULL ELSE e.capture END AS owner,
            CASE WHEN o.name IS NOT NULL THEN {words.text("o", "state")}
                WHEN {is_spread} OR e.capture IS NULL THEN 'Removed' ELSE 'Launched' END AS owner_state,
            CASE WHEN o.name IS NOT NULL THEN o.created
                WHEN {is_spread} THEN NULL ELSE e.revision END AS owner_revision,
            {words.text("o", "next")} AS next_owner, coalesce({words.truth("o", "is_chosen")}, 0) AS is_chosen
        FROM weir_key k
        LEFT JOIN weir_key f ON f.name = {format_key}
        LEFT JOIN weir_key o ON o.name = replace(k.name, '/changefeed/info/', '/owner-of/')
        LEFT JOIN weir_election e ON e.cluster = {words.part("k", 3)} AND e.is_leader = 1
        WHERE k.name LIKE '/weir/%/%/changefeed/info/%'"""


def _progress(words: Words) -> str:
    """Of the stored status and the owner's newer progress (``reactor.membership.progress``)."""
    fields = ("checkpoint_ts", "checkpoint_time", "resolved_ts", "min_table_barrier_ts")
    numbers = {
        name: f"CASE WHEN {_counts(words)} THEN {_entry(words, name)} ELSE {words.number('k', name)} END"
        for name in fields
    }
    return f"""
        SELECT {_feed_key(words)}, s.owner AS capture,
            {words.integer(numbers["checkpoint_ts"])} AS checkpoint_ts,
            {words.time(numbers["checkpoint_time"])} AS checkpoint_time,
            {words.integer(numbers["resolved_ts"])} AS resolved_ts,
            {words.integer(numbers["min_table_barrier_ts"])} AS min_table_barrier_ts,
            CASE WHEN {_counts(words)} THEN p.modified ELSE k.modified END AS modified_revision
        FROM weir_key k
        LEFT JOIN weir_schedule s ON s.cluster = {words.part("k", 3)} AND s.namespace = {words.part("k", 4)}
            AND s.changefeed = {words.part("k", 7)}
        LEFT JOIN weir_key p ON p.name = {
        words.concat("'/weir/'", words.part("k", 3), "'/'", words.part("k", 4), "'/progress/'", "s.owner")
    }
        LEFT JOIN weir_changefeed f ON f.cluster = {words.part("k", 3)} AND f.namespace = {words.part("k", 4)}
            AND f.changefeed = {words.part("k", 7)}
        WHERE k.name LIKE '/weir/%/%/changefeed/status/%'"""


def _counts(words: Words) -> str:
    entry, stored = f"coalesce({_entry(words, 'generation')}, 0)", f"coalesce({words.number('k', 'generation')}, 0)"
    incarnation = words.entry("p", words.part("k", 7), "incarnation")
    return f"({incarnation} IS NOT NULL AND f.incarnation IN ('', {incarnation}) AND {entry} = {stored})"


def _entry(words: Words, field: str) -> str:
    return words.decimal(words.entry("p", words.part("k", 7), field))


def _feed_key(words: Words) -> str:
    return f"{words.part('k', 3)} AS cluster, {words.part('k', 4)} AS namespace, {words.part('k', 7)} AS changefeed"


def _sqlite_document(row: str) -> str:
    text = f"CAST({row}.value AS TEXT)"
    return f"CASE WHEN json_valid({text}) THEN {text} END"


#: SQLite cannot split text, but it reads JSON; names of our keys have neither quotes nor backslashes
SQLITE = Words(
    part=lambda row, place: f"json_extract('[\"' || replace({row}.name, '/', '\",\"') || '\"]', '$[{place - 1}]')",
    text=lambda row, path: f"json_extract({_sqlite_document(row)}, '$.{path}')",
    number=lambda row, path: f"json_extract({_sqlite_document(row)}, '$.{path}')",
    entry=lambda row, id, field: f"json_extract({_sqlite_document(row)}, '$.changefeeds.\"' || {id} || '\".{field}')",
    decimal=lambda text: text,
    integer=lambda number: f"CAST({number} AS INTEGER)",
    truth=lambda row, path: f"json_extract({_sqlite_document(row)}, '$.{path}')",
    time=lambda number: f"CASE WHEN {number} > 0 THEN strftime('%Y-%m-%d %H:%M:%f', {number}, 'unixepoch') END",
    concat=lambda *texts: " || ".join(texts),
)


def _postgres_path(path: str) -> str:
    return "{" + path.replace(".", ",") + "}"


#: a value that is no JSON must not end the whole query
POSTGRES = Words(
    part=lambda row, place: f"split_part({row}.name, '/', {place})",
    text=lambda row, path: f"(weir_json({row}.value) #>> '{_postgres_path(path)}')",
    number=lambda row, path: f"(weir_json({row}.value) #>> '{_postgres_path(path)}')::numeric",
    entry=lambda row, id, field: f"(weir_json({row}.value) #>> ARRAY['changefeeds', {id}, '{field}'])",
    decimal=lambda text: f"{text}::numeric",
    integer=lambda number: f"({number})::bigint",
    truth=lambda row, path: f"(weir_json({row}.value) #>> '{_postgres_path(path)}')::boolean::integer",
    time=lambda number: f"CASE WHEN {number} > 0 THEN to_timestamp(({number})::double precision) END",
    concat=lambda *texts: "(" + " || ".join(texts) + ")",
    before=(
        "CREATE OR REPLACE FUNCTION weir_json(value bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE"
        " SET search_path = pg_catalog AS"
        " $$ BEGIN RETURN convert_from(value, 'UTF8')::jsonb; EXCEPTION WHEN OTHERS THEN RETURN NULL; END $$",
    ),
)


def _mysql_text(row: str, path: str) -> str:
    text = f"CONVERT({row}.value USING utf8mb4)"
    return f"JSON_UNQUOTE(JSON_EXTRACT(CASE WHEN JSON_VALID({text}) THEN {text} END, '$.{path}'))"


def _mysql_entry(row: str, id: str, field: str) -> str:
    text = f"CONVERT({row}.value USING utf8mb4)"
    path = f"CONCAT('$.changefeeds.\"', {id}, '\".{field}')"
    return f"JSON_UNQUOTE(JSON_EXTRACT(CASE WHEN JSON_VALID({text}) THEN {text} END, {path}))"


MYSQL = Words(
    part=lambda row, place: f"SUBSTRING_INDEX(SUBSTRING_INDEX({row}.name, '/', {place}), '/', -1)",
    text=_mysql_text,
    entry=_mysql_entry,
    decimal=lambda text: f"CAST({text} AS DECIMAL(30, 6))",
    number=lambda row, path: f"CAST({_mysql_text(row, path)} AS DECIMAL(30, 6))",
    integer=lambda number: f"CAST({number} AS SIGNED)",
    truth=lambda row, path: f"CASE {_mysql_text(row, path)} WHEN 'true' THEN 1 WHEN 'false' THEN 0 END",
    time=lambda number: (
        f"CASE WHEN {number} > 0 THEN TIMESTAMPADD(MICROSECOND, CAST({number} * 1000000 AS SIGNED), '1970-01-01') END"
    ),
    concat=lambda *texts: f"CONCAT({', '.join(texts)})",
)
