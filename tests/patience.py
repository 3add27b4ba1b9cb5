"""Deadlines of tests: promised times where a test has the machine to itself, longer ones elsewhere.

``make test`` runs up to four tests side by side on any machine and ``make matrix`` two, so a missed deadline there says
more about the machine than about Weir. They wait four times and three times as long for the same outcome. ``make matrix
ARGS=…``, which runs one test at a time, and the benchmarks check the promised times. What no time is promised for has
``HANG_S``.
"""

import os

PATIENCE = float(os.environ.get("TEST_PATIENCE", "4"))


def patient(seconds: float) -> float:
    """The deadline for what is promised within ``seconds``."""
    return seconds * PATIENCE


#: a test that has waited this long, for what is promised at no time, hangs
HANG_S = patient(60)
