"""Deadlines of tests: promised times in ``make matrix``, four times as long elsewhere.

``make test`` runs three tests side by side on any machine, so a missed deadline there says more about the machine than
about Weir. It therefore waits longer for the same outcome; ``make matrix`` and the benchmarks check the promised times.
What no time is promised for has ``HANG_S``.
"""

import os

PATIENCE = float(os.environ.get("TEST_PATIENCE", "4"))


def patient(seconds: float) -> float:
    """The deadline for what is promised within ``seconds``."""
    return seconds * PATIENCE


#: a test that has waited this long, for what is promised at no time, hangs
HANG_S = patient(60)
