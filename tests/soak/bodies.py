"""Table bodies: columns and primary key of a random table, in the words that all servers share."""

import random
from collections.abc import Callable, Sequence


def body(rng: random.Random, keys: Sequence[str], definition: Callable[[random.Random], str]) -> str:
    """Return what a CREATE TABLE has in parentheses. ``keys``: types of key columns."""
    columns = [f"id {rng.choice(keys)} NOT NULL"]
    key = ["id"]
    if rng.random() < 0.3:
        columns.append(f"part {rng.choice(keys)} NOT NULL")
        key.append("part")
    columns += [f"c{index} {definition(rng)}" for index in range(rng.randint(1, 6))]
    return f"({', '.join(columns)}, PRIMARY KEY ({', '.join(key)}))"
