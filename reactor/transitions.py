"""Transition history: a state machine's last steps with their causes, and the error for a missing transition.

State machines look a step up in their table, record it here, and raise ``invalid`` if the table has no row: that is a
bug in us, and the history shows how it came about. Invalid input of users and peers is rejected earlier, by other
errors.
"""

from functools import lru_cache

from reactor.errors import InvalidTransitionError

#: steps kept per machine
KEPT = 8

#: state before, cause, state after
Step = tuple[str, str, str]
Steps = tuple[Step, ...]


@lru_cache(maxsize=4096)
def _step(before: str, cause: str, after: str) -> Step:
    """Return one shared object per distinct step, since there may be a machine for each of very many spans."""
    return before, cause, after


def noted(steps: Steps, before: str, cause: str, after: str, *, kept: int = KEPT) -> Steps:
    """Return ``steps`` with one more, without the oldest if there are too many."""
    return (*steps[1 - kept :], _step(before, cause, after))


def described(steps: Steps) -> str:
    """Format the steps, oldest first: ``normal -(error)-> pending -(wait over)-> warning``."""
    if not steps:
        return "nothing before"
    parts = [steps[0][0]]
    for before, cause, after in steps:
        gap = [] if parts[-1] == before else ["…", before]
        parts += [*gap, f"-({cause})->", after]
    return " ".join(parts)


def invalid(machine: str, state: str, cause: str, steps: Steps) -> InvalidTransitionError:
    """Return the error of a machine in ``state`` whose table has no row for ``cause``."""
    text = f"{machine} is {state}, which has no transition for {cause} (a bug; {described(steps)}); report it"
    return InvalidTransitionError(text)


class History:
    """The last steps of one machine. ``machine``: its name in errors."""

    def __init__(self, machine: str) -> None:
        self.machine = machine
        self.steps: Steps = ()

    def note(self, before: str, cause: str, after: str) -> None:
        self.steps = noted(self.steps, before, cause, after)

    def invalid(self, state: str, cause: str) -> InvalidTransitionError:
        return invalid(self.machine, state, cause, self.steps)

    def __str__(self) -> str:
        return described(self.steps)
