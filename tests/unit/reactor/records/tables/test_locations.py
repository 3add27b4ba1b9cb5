"""Locations of tables: the encoding of names can be undone, and its parts are safe in every path."""

import re
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reactor.errors import InvalidRecordError
from reactor.records.tables.locations import PATTERN, decoded, encoded, location_of
from reactor.records.tables.table import TableRecord
from tests.example_counts import many

HARD = [
    "",
    ".",
    "..",
    "../../../../x",
    "a/b",
    "%41",
    "a\\b",
    "a\nb",
    "_delta_log",
    "Data",
    "!",
    "!2F",
    "!z1",
    ".weir-1-2",
]
HARD += ["e\u0301", "\u212b", "\u1100\u1161", "❤\ufe0f", "\u202e", "~", "a!20b", "\x00", "\ud800", "x" * 63, "😀" * 64]

names = st.sampled_from(HARD) | st.text(max_size=64) | st.text(st.sampled_from("ab./\\%41_!z-~\né\u0301İ"), max_size=12)


@settings(max_examples=many(500))
@given(names)
@example("\U0010ffff" * 64)
@example("𓀀" * 64)
def test_a_name_is_one_safe_part_of_a_path_and_comes_back(name: str) -> None:
    part = encoded(name)
    assert decoded(part) == name
    assert 1 <= len(part.encode()) <= 255
    assert part.isprintable()
    assert not re.search(r"[/\\%.~ \[\]?*#|^'\"$:<>&;=+@,{}`()]", part)
    assert part.lower() not in ("_delta_log", "_change_data", "metadata", "data")
    assert unicodedata.normalize("NFC", part) == part
    assert re.fullmatch(PATTERN, f"{part}/{part}")


@settings(max_examples=many(500))
@given(names, names)
@example("é", "e\u0301")
@example("\u212b", "\u00c5")
@example("a b", "a!20b")
@example("!z1", "\x00")
def test_two_names_are_two_parts_also_to_a_file_system_that_composes_letters(name: str, other: str) -> None:
    parts = [unicodedata.normalize(form, encoded(each)) for each in (name, other) for form in ("NFC", "NFD")]
    assert (name == other) == bool({*parts[:2]} & {*parts[2:]})


def test_letters_and_digits_of_every_script_stay() -> None:
    for name in ("orders", "Order_Items-2", "日本語", "Ünïcödé", "हिन्दी", "ไทย", "٤٢", "a" * 63, "名" * 63):
        assert encoded(name) == name
        assert TableRecord.new(1, "public", name).location == ""


@pytest.mark.parametrize(
    ("name", "part"),
    [("a b", "a!20b"), ("..", "!2E!2E"), ("_delta_log", "!5Fdelta_log"), ("METADATA", "!4DETADATA"), ("a!", "a!21")],
)
def test_what_is_documented(name: str, part: str) -> None:
    assert location_of(name, "t") == f"{part}/t"


def test_a_location_is_recorded_with_a_table_and_only_another_name_changes_it() -> None:
    table = TableRecord.new(1, "public", "a/b", key=("id",))
    assert table.path == table.location == "public/a!2Fb"
    assert TableRecord.decode(table.encode(), key="k") == table
    assert table.named("public", "a/b") is table
    assert table.named("public", "ab").path == "public/ab"
    assert table.named("public", "ab").location == ""

    before = TableRecord.decode(b'{"table_id": 1, "schema_name": "public", "name": "a b"}', key="k")
    assert before.path == "public/a b", "a table of v0.1.0 stays where it is"
    assert before.named("public", "a b").path == "public/a b"
    assert before.named("public", "a c").path == "public/a!20c"


@pytest.mark.parametrize("location", ["/etc", "a", "../x", "a/..", "a/b/c", "a/.weir-1", "a\\/b", "%2E/x", "a/b\n"])
def test_a_stored_location_that_is_none_is_refused(location: str) -> None:
    table = TableRecord(table_id=1, schema_name="s", name="t").with_(location=location)
    with pytest.raises(InvalidRecordError, match="wrong: location"):
        TableRecord.decode(table.encode(), key="k")
