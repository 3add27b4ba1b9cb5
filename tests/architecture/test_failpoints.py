"""Every fail-point that is declared is reached, at exactly one place of the program."""

import ast
from collections import Counter

from reactor.failpoints import Point
from tests.architecture.test_tidy import FILES, name_of, tree_of


def test_every_point_is_reached_at_one_place() -> None:
    used = Counter(
        node.attr
        for path in FILES
        if name_of(path) != "reactor/failpoints.py"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Point"
    )
    assert used == {point.name: 1 for point in Point}
