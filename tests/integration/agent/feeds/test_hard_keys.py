"""Tables with keys that are hard to compare: what differs is found, and repaired by condition and as a whole."""

import random
from collections.abc import Sequence

import pytest

from agent.feeds import range_diff
from tests.integration.agent.feeds.test_range_diff import Bed, bed, divide  # noqa: F401

#: by type: values that are other keys, each as one literal; PostgreSQL's and MariaDB's
POSTGRES = {
    "text": ("'a'", "'A'", "'a '", "''", "'ä'", "'é'", "'Z'", "'ß'", "E'\\t'", "'''\\\\'"),
    'text COLLATE "C"': ("'a'", "'A'", "'a '", "''", "'ä'", "'Z'"),
    'text COLLATE "pg_c_utf8"': ("'a'", "'A'", "'a '", "''", "'ä'"),
    "char(5)": ("'a'", "'A'", "' a'", "''", "'ä'"),
    "varchar(20)": ("'a'", "'a '", "'A'", "'%_'"),
    "real": ("1.5", "'NaN'", "'Infinity'", "'-Infinity'", "0", "1048576"),
    "double precision": ("0.1", "'NaN'", "'Infinity'", "0", "1e-310", "-1.7e308", "9007199254740993"),
    "uuid": (
        "'3f2504e0-4f89-11d3-9a0c-0305e82c3301'",
        "'00000000-0000-0000-0000-000000000000'",
        "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    ),
    "bytea": ("''", "'\\x00'", "'\\xff'", "'\\x27'", "'\\x5c'", "'a'"),
    "numeric": ("1.10", "1e50", "-0.00000000000000000001", "'NaN'", "0", "'Infinity'"),
    "numeric(38,10)": ("1.1", "-9999999999999999999999999999.9999999999", "0"),
    "numeric(60,20)": ("1.1", "9999999999999999999999999999999999999999.99999999999999999999", "0"),
    "timestamptz": ("'2024-03-31 02:30:00+02'", "'0001-01-01 00:00:00+00'", "'9999-12-31 23:59:59.999999+00'"),
    "timestamp": ("'2024-03-31 02:30:00'", "'1969-12-31 23:59:59.999999'"),
    "date": ("'1969-12-31'", "'9999-12-31'", "'0001-01-01'"),
    "time": ("'00:00'", "'23:59:59.999999'"),
    "interval": ("'1 mon'", "'-1 day'", "'00:00:00.000001'"),
    "mood": ("'sad'", "'ok'", "'a b'"),
    "boolean": ("true", "false"),
    "bigint": ("-9223372036854775808", "9223372036854775807", "0", "-1"),
    "inet": ("'10.0.0.1'", "'10.0.0.0/8'", "'::1'"),
    "bit(9)": ("B'000000001'", "B'111111111'"),
    "int4range": ("'[1,5)'", "'empty'"),
    "jsonb": ("""'{"a": 1}'""", "'null'", "'[]'"),
    "int[]": ("'{}'", "'{1,NULL}'"),
}
MARIA = {
    "varchar(20)": ("'a'", "'b '", "''", "'z'", "'\\\\'''"),
    "varchar(20) COLLATE utf8mb4_bin": ("'a'", "'A'", "'ä'", "''"),
    "varchar(20) COLLATE utf8mb4_nopad_bin": ("'a'", "'A'", "'a '", "'ä'", "''"),
    "varchar(20) COLLATE utf8mb4_unicode_520_ci": ("'a'", "'strasse'", "'z'"),
    "varchar(20) CHARACTER SET latin1": ("'a'", "'ö'", "'€'"),
    "varchar(20) CHARACTER SET ucs2": ("'a'", "'ö'", "'€'"),
    "char(5)": ("'a'", "'b'", "''", "'ü'"),
    "char(5) CHARACTER SET ascii": ("'a'", "'b'"),
    "binary(4)": ("0x61000000", "0x00000000", "0x00000001", "0x61200000"),
    "varbinary(9)": ("'a'", "''", "'a '", "'A'", "'\\0'", "0xff"),
    "float": ("1.5", "0", "-0.25", "16777216"),
    "double": ("0.1", "0", "-1e-300", "1.7e308"),
    "decimal(65,30)": ("1.1", "-99999999999999999999999999999999999.999999999999999999999999999999", "0"),
    "decimal(20,0) unsigned": ("0", "99999999999999999999"),
    "timestamp(6)": ("'2024-03-30 02:30:00.000001'", "'1970-01-02 00:00:01'"),
    "datetime(6)": ("'2024-03-31 02:30:00.000001'", "'1000-01-01 00:00:00'", "'9999-12-31 23:59:59.999999'"),
    "date": ("'1969-12-31'", "'9999-12-31'"),
    "time(3)": ("'-838:59:59'", "'00:00:00.001'", "'838:59:59'"),
    "year": ("1901", "2155"),
    "enum('b','a','A b')": ("'b'", "'a'", "'A b'"),
    "set('x','y')": ("''", "'x'", "'x,y'"),
    "bit(20)": ("0", "1", "1048575"),
    "bit(1)": ("0", "1"),
    "boolean": ("0", "1"),
    "bigint unsigned": ("0", "18446744073709551615", "9223372036854775808"),
    "bigint": ("-9223372036854775808", "9223372036854775807", "0"),
    "uuid": ("'3f2504e0-4f89-11d3-9a0c-0305e82c3301'", "'00000000-0000-0000-0000-000000000000'"),
    "inet6": ("'::1'", "'2001:db8::ff00:42:8329'"),
}
CASES = [
    *(pytest.param("postgres", kind, values, id=f"postgres-{kind}") for kind, values in POSTGRES.items()),
    *(pytest.param("mariadb", kind, values, id=f"mariadb-{kind}") for kind, values in MARIA.items()),
]


@pytest.mark.sample(0.05)
@pytest.mark.parametrize("shape", ["k", "k, b", "b, k"])
@pytest.mark.parametrize(("bed", "kind", "values"), CASES, indirect=["bed"])
def test_differences_are_found_and_repaired(
    bed: Bed,  # noqa: F811
    kind: str,
    values: Sequence[str],
    shape: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    divide(monkeypatch, 2)
    monkeypatch.setattr(range_diff, "_RANGES_MAX", 16)
    rng = random.Random(f"{kind} {shape}")
    if bed.kind == "postgres":
        bed.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'a b')")
    bed.execute(f"CREATE TABLE t (k {kind} NOT NULL, b int NOT NULL, v varchar(9) NOT NULL, PRIMARY KEY ({shape}))")
    rows = [(value, b) for value in values for b in ((1, 2) if "b" in shape else (1,))]
    for value, b in rows:
        bed.execute(f"INSERT INTO t VALUES ({value}, {b}, '{rng.choice('xy')}')")
    bed.copy()
    assert bed.compared().differences == ()
    lost = rng.sample(rows, max(1, len(rows) // 4))
    for value, b in lost:
        bed.execute(f"DELETE FROM t WHERE k = {value} AND b = {b}")
    changed = [row for row in rows if row not in lost and rng.random() < 0.4]
    for value, b in changed:
        bed.execute(f"UPDATE t SET v = 'z' WHERE k = {value} AND b = {b}")
    found = bed.compared()
    assert len(found.differences) == len(lost) + len(changed) or len(found.differences) == 10
    shown = bed.repaired(is_trial=True)
    assert sorted(one.what for one in shown.keys) == sorted(["deleted"] * len(lost) + ["updated"] * len(changed))
    part = bed.repaired(where="v = 'z'")
    if not part.refused:
        assert sorted(one.what for one in part.keys) == ["updated"] * len(changed)
    part = bed.repaired(where="v = 'x' OR v = 'y'")
    if not part.refused:
        assert sorted(one.what for one in part.keys) == ["deleted"] * len(lost)
        assert bed.compared().differences == ()
    bed.repaired()
    assert bed.compared().differences == ()
    assert bed.compared().rows_sink == len(rows) - len(lost)


@pytest.mark.parametrize("bed", ["mariadb"], indirect=True)
@pytest.mark.parametrize("after", ["A", "a ", "á"])
def test_a_key_that_is_the_same_to_the_server_alone(bed: Bed, after: str) -> None:  # noqa: F811
    """The sink has another row for each spelling; the server finds one by any of them."""
    bed.execute("CREATE TABLE t (k varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, v varchar(9))")
    bed.execute("INSERT INTO t VALUES ('a', 'x'), ('b', 'x')")
    bed.copy()
    bed.execute(f"UPDATE t SET k = '{after}' WHERE k = 'a'")
    found = bed.repaired(where="v = 'x'")
    assert found.refused == ""
    assert {(one.key["k"], one.what) for one in found.keys} == {("a", "deleted"), (after, "inserted")}
    assert bed.compared().differences == ()
    bed.execute("UPDATE t SET v = 'y' WHERE k = 'a'")
    bed.repaired()
    bed.execute("UPDATE t SET k = 'a', v = 'y' WHERE k = 'a'")
    bed.repaired(where="v = 'none'")
    found = bed.repaired(where=f"k = '{after}'")
    assert {(one.key["k"], one.what) for one in found.keys} == {("a", "inserted"), (after, "deleted")}
    assert bed.compared().differences == ()
