"""Questions: requests of the owner to the data plane, all by one effect and one event.

A question is a frozen value that names the type of its answer (``owner.questions``). The owner's state machine returns
it in an ``Ask``; ``capture.member.asking`` has it answered, one at a time per subject and within its deadline, and
gives the owner one ``Answered`` for each ``Ask``, which repeats the question. Every question is idempotent: an owner
that does not know whether something was done asks again.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from reactor.ids import ChangefeedId
from reactor.records.changefeed import ChangefeedInfo, RunningError

A = TypeVar("A")

#: code of an ``Answered.error``: the same question is already being answered, perhaps for an owner part that crashed
UNDER_WAY = "StillRunning"


class Question(Generic[A]):
    """Its subclasses are frozen dataclasses; ``A`` is the type of the answer."""

    __slots__ = ()
    #: seconds after which the owner gets an error instead of an answer; the work may continue
    deadline_s: ClassVar[float] = 120.0
    #: the same question is answered by the work that is under way, whenever that began; else it is refused
    joins: ClassVar[bool] = False

    @property
    def subject(self) -> Hashable:
        """The part of the changefeed that the question is about: one question of a type per subject at a time."""
        return None


@dataclass(frozen=True, slots=True)
class Ask(Generic[A]):
    """Have ``question`` answered for the changefeed as it is now."""

    changefeed: ChangefeedId
    info: ChangefeedInfo
    question: Question[A]


@dataclass(frozen=True, slots=True)
class Answered(Generic[A]):
    """The one event that follows an ``Ask``. ``answer`` is meaningless if there is an error."""

    changefeed: ChangefeedId
    question: Question[A]
    answer: A | None = None
    error: RunningError | None = None
