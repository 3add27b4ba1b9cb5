"""User patterns: they mean what Python's ``re`` means, and none stops its process."""

import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import FilterError, SourceConfigError
from agent.filter import events
from agent.filter.patterns import LIMIT_S, Pattern, for_statements, for_tables
from agent.filter.tables import TableFilter
from reactor.records.changefeed import EventFilter, FilterConfig

_ATOMS = st.sampled_from(
    [
        *"abAB_0é ßſK{}",
        r"\.",
        ".",
        r"\w",
        r"\d",
        r"\s",
        r"\W",
        r"\b",
        "[a-c]",
        "[^a-c]",
        "[à-ü_]",
        "^",
        "$",
        r"\Z",
        r"\A",
    ]
)
_PATTERNS = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.builds("".join, st.lists(inner, min_size=1, max_size=4)),
        st.builds("({}|{})".format, inner, inner),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{1,3}", "*?", "{2}", "{0,2}?"])),
        st.builds("{}({}){}".format, st.sampled_from(["(?=a)", "(?!b)", "(?<=a)", "(?i:a)"]), inner, inner),
    ),
    max_leaves=8,
)
_TEXTS = st.text(st.sampled_from("abcABC_0é ßſKk.\nüÜ"), max_size=12)
#: takes time that doubles with each character, also for engines that know of (a+)+
_SLOW, _TEXT = "(a|aa)+$", "a" * 60 + "b"


@given(_PATTERNS, _TEXTS)
def test_a_pattern_means_what_it_means_to_python(pattern: str, text: str) -> None:
    try:
        whole, part = re.compile(pattern), re.compile(pattern, re.IGNORECASE)
    except re.error:
        with pytest.raises(SourceConfigError, match="is no regular expression"):
            for_tables(pattern)
        return
    assert for_tables(pattern).matches(text) == (whole.fullmatch(text) is not None)
    assert for_statements(pattern).is_in(text) == (part.search(text) is not None)


@pytest.mark.filterwarnings("ignore:Possible")  # Python's, of what may mean more one day
@pytest.mark.parametrize(
    "pattern",
    [
        *(
            "a{e<=1}b",
            "a{e}",
            "a{}",
            "a{,2}",
            "a{2}{e}",
            r"\{e}",
            "[[a]b]",
            "[[:alpha:]]",
            "[^[:a]",
            r"[\]{[]",
            "[]{a]",
        ),
        *("[a||b]", r"\07", "(?#[)a{e}", "(?x) a {e} # ["),
    ],
)
def test_what_only_the_engine_knows_is_text(pattern: str) -> None:
    for text in (
        "a{e<=1}b",
        "ab",
        "axb",
        "a{e}",
        "[",
        "a]",
        "b]",
        "a",
        "-",
        "|",
        "aa",
        "\07",
        "]",
        "a{}",
        "{e}",
        "aa{e}",
        "{",
    ):
        assert for_tables(pattern).matches(text) == (re.fullmatch(pattern, text) is not None), text


def test_a_slow_one_is_an_error_of_its_setting_in_time() -> None:
    began = time.process_time()
    with pytest.raises(SourceConfigError, match=r"^a filter rule's regular expression '\(a\|aa\)\+\$' takes"):
        TableFilter([f"public./{_SLOW}/"]).wants("public", _TEXT)
    rules = events.rules_for(
        FilterConfig(event_filters=(EventFilter(matcher=("*.*",), ignore_sql=(_SLOW,)),)), "a", "b"
    )
    with pytest.raises(FilterError, match=r"^ignore-sql .*simplify it"):
        rules.ignores_ddl((), _TEXT)
    assert time.process_time() - began < 10 * LIMIT_S


def test_other_threads_run_while_a_slow_one_is_matched() -> None:
    pattern, steps = Pattern(_SLOW, setting="x", error=FilterError), list[float]()
    is_over = threading.Event()

    def step() -> None:
        while not is_over.wait(0.001):
            steps.append(time.monotonic())

    def is_stepped_in_the_middle() -> bool:
        began = time.monotonic()
        with pytest.raises(FilterError):
            pattern.matches(_TEXT)
        quarter = (time.monotonic() - began) / 4
        return any(began + quarter < at < began + 3 * quarter for at in steps)

    thread = threading.Thread(target=step)
    thread.start()
    try:
        # a busy machine may run neither for a while
        assert any(is_stepped_in_the_middle() for _ in range(20))
    finally:
        is_over.set()
        thread.join()
