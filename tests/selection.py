"""Selection of tests: which ones are marked ``matrix``, and which of these a run of ``make matrix`` takes.

=====================  ===================================  =====================================
mark, or parameter     ``make test``                        one turn of ``make matrix``
=====================  ===================================  =====================================
``matrix``             none                                 those of some files
``sample(share)``      that share of the cases              some of the other cases
a ``flavour``          each case on MariaDB or on MySQL     some of the cases on the other
``both_flavours``      each case on both                    none
``in_turn(fixture)``   those that are not ``matrix``        all with some of its parameters
``minutes(count)``     ignored                              how long a test takes, if it is long
=====================  ===================================  =====================================

Each of them has one of :data:`TURNS` turns, and all turns take about as long. ``TEST_TURN`` is a run's turn: any
number, such as that of the day. Without it a run has all turns (``ALL=1``), or all tests that are named (``ARGS``).

``TEST_SAMPLE`` (any text) is the seed of what ``make test`` chooses: another text chooses other cases. A choice depends
on a test's name alone, and a turn on the tests that there are, so all processes of a run choose the same.
"""

import os
import re
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence

import pytest

from tests.mysql_package import why_not
from tests.mysql_server import EmbeddedMysql

#: runs of ``make matrix`` that have all its tests
TURNS = 10
#: minutes of a test that says nothing: of a cluster, and of others
_OF_A_CLUSTER, _OF_OTHERS = 0.5, 0.03


def mark(items: Iterable[pytest.Item]) -> None:
    """Mark ``matrix`` what ``make test`` leaves out."""
    for item in items:
        if _is_other_case(item) or _is_of_other_flavour(item):
            item.add_marker("matrix")


def left_out(items: Sequence[pytest.Item], only_properties: bool = False) -> list[pytest.Item]:
    """Return the tests whose turn is another than that of this run of ``make matrix``. A run of ``only_properties``
    leaves out all other tests as well."""
    if not (turn := os.environ.get("TEST_TURN")):
        return []
    if only_properties:
        return [item for item in items if not _is_property(item) or (_chosen(item.nodeid) - int(turn)) % TURNS]
    marked = [item for item in items if item.get_closest_marker("matrix")]
    turns = _turns(marked)
    return [item for item in marked if turns[_unit(item)] != int(turn) % TURNS]


def _turns(items: Iterable[pytest.Item]) -> dict[str, int]:
    """Return the turn of each unit: the longest first, each where least is to be done so far."""
    minutes: dict[str, float] = defaultdict(float)
    for item in items:
        minutes[_unit(item)] += _minutes(item)
    loads, turns = [0.0] * TURNS, {}
    for unit in sorted(minutes, key=lambda unit: (-minutes[unit], _chosen(unit), unit)):
        turns[unit] = loads.index(min(loads))
        loads[turns[unit]] += minutes[unit]
    return turns


def _unit(item: pytest.Item) -> str:
    """Return the name of what has one turn: a case, the cases of a file with one parameter, or a file, whose tests
    may share what takes long to start."""
    file = item.nodeid.partition("::")[0]
    mark, parameters = item.get_closest_marker("in_turn"), getattr(item, "callspec", None)
    if mark is not None and parameters is not None and mark.args[0] in parameters.indices:
        return f"{file}[{parameters.indices[mark.args[0]]}]"
    if item.get_closest_marker("sample") or _flavour(item):
        return item.nodeid
    return file


def _minutes(item: pytest.Item) -> float:
    if mark := item.get_closest_marker("minutes"):
        return float(mark.args[0])
    return _OF_A_CLUSTER if item.get_closest_marker("acceptance") else _OF_OTHERS


def _chosen(name: str) -> int:
    return zlib.crc32(f"{os.environ.get('TEST_SAMPLE', '')}{name}".encode())


def _is_property(item: pytest.Item) -> bool:
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def _is_other_case(item: pytest.Item) -> bool:
    """Of cases that are generated, ``make test`` runs a share."""
    mark = item.get_closest_marker("sample")
    return mark is not None and _chosen(item.nodeid) % 100 >= 100 * mark.args[0]


def _is_of_other_flavour(item: pytest.Item) -> bool:
    """Of a case that runs on MariaDB and on MySQL, ``make test`` runs one."""
    if item.get_closest_marker("both_flavours") or (flavour := _flavour(item)) is None:
        return False
    case = re.sub(r"\[(mariadb|mysql)\b", "[", item.nodeid)
    is_on_mysql = _chosen(case) % 2 == 1 and not why_not()
    return is_on_mysql is not (flavour is EmbeddedMysql)


def _flavour(item: pytest.Item) -> type | None:
    """Return the server of a case that runs on MariaDB and on MySQL."""
    parameters = getattr(item, "callspec", None)
    return None if parameters is None else parameters.params.get("flavour")
