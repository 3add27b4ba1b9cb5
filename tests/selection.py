"""Selection of tests: which ones are marked ``matrix``, and which of these a run of ``make matrix`` takes.

=====================  ===================================  ===================================  ======================
mark                   ``make test``                        ``make matrix``                      ``make matrix ALL=1``
=====================  ===================================  ===================================  ======================
``matrix``             none                                 all                                  all
``sample(share)``      that share of the cases              a third of the others                the others
``one_flavour``        each case on MariaDB or on MySQL     on the other                         on the other
``in_turn(fixture)``   those that are not marked            each case with one of the            with all
                       ``matrix`` as well                   fixture's parameters that are left
=====================  ===================================  ===================================  ======================

``TEST_SAMPLE`` (any text) is the seed of all choices: another text, such as the date, chooses other cases. A choice
depends on a test's name alone, so all processes of a run choose the same. ``in_turn(None)`` takes a test out of its
module's mark.
"""

import os
import re
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import pytest

from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql

#: of the cases that ``make test`` leaves out, ``make matrix`` runs one in this many
_TURNS = 3


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark ``matrix`` what ``make test`` leaves out."""
    for item in items:
        if _is_other_case(item) or _is_of_other_flavour(item):
            item.add_marker("matrix")


def left_out(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Return the tests that this run of ``make matrix`` leaves out. ``TEST_MATRIX=turn``: it has neither ``ALL`` nor
    ``ARGS``. Otherwise it leaves out none."""
    if os.environ.get("TEST_MATRIX") != "turn":
        return []
    others = [item for item in items if _is_other_case(item) and _chosen(item.nodeid) // 100 % _TURNS]
    return others + _not_in_turn(items)


def _chosen(name: str) -> int:
    return zlib.crc32(f"{os.environ.get('TEST_SAMPLE', '')}{name}".encode())


def _is_other_case(item: pytest.Item) -> bool:
    """Of cases that are generated, ``make test`` runs a share."""
    mark = item.get_closest_marker("sample")
    return mark is not None and _chosen(item.nodeid) % 100 >= 100 * mark.args[0]


def _is_of_other_flavour(item: pytest.Item) -> bool:
    """Of a case that runs on MariaDB and on MySQL, ``make test`` runs one."""
    mark, parameters = item.get_closest_marker("one_flavour"), getattr(item, "callspec", None)
    if mark is None or mark.args == (False,) or parameters is None or "flavour" not in parameters.params:
        return False
    case = re.sub(r"\[(mariadb|mysql)\b", "[", item.nodeid)
    is_on_mysql = _chosen(case) % 2 == 1 and not why_not()
    return is_on_mysql is not (parameters.params["flavour"] is EmbeddedMysql)


def _not_in_turn(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the cases marked ``in_turn`` whose turn it is not. Cases are the same if they differ in that fixture's
    parameter only."""
    cases: dict[Hashable, list[pytest.Item]] = defaultdict(list)
    for item in items:
        mark, parameters = item.get_closest_marker("in_turn"), getattr(item, "callspec", None)
        if mark is None or mark.args[0] is None or parameters is None or not item.get_closest_marker("matrix"):
            continue
        rest = {name: repr(value) for name, value in parameters.params.items() if name != mark.args[0]}
        cases[item.nodeid.partition("[")[0], frozenset(rest.items())].append(item)
    return [item for same in cases.values() for item in same if item is not same[_chosen(same[0].nodeid) % len(same)]]
