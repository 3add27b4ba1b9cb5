"""Questions: what the owner asks of the data plane, as one effect and one event for all of them.

A question is a frozen value that names the type of its answer (``owner.questions``). The owner's machine returns it in
an ``Ask``; ``capture.member.asking`` has it answered, once at a time for each subject and within its deadline, and
gives the owner one ``Answered`` for each ``Ask``, which repeats the question. Every question is safe to ask again: an
owner that does not know whether something was done asks again.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from reactor.ids import ChangefeedId
from reactor.records.changefeed import ChangefeedInfo, RunningError

A = TypeVar("A")

#: code of an ``Answered.error``: the same was asked before, perhaps by an owner's part that crashed, and is under way
UNDER_WAY = "StillRunning"


class Question(Generic[A]):
    """Its subclasses are frozen dataclasses; ``A`` is the type of the answer."""

    __slots__ = ()
    #: seconds after which the owner gets an error instead of an answer; the work may go on
    deadline_s: ClassVar[float] = 120.0

    @property
    def subject(self) -> Hashable:
        """The part of the changefeed that the question is about: of one subject, one question of a type at a time."""
        return None


@dataclass(frozen=True, slots=True)
class Ask(Generic[A]):
    """Have ``question`` answered for a changefeed as it was when it was asked."""

    changefeed: ChangefeedId
    info: ChangefeedInfo
    question: Question[A]


@dataclass(frozen=True, slots=True)
class Answered(Generic[A]):
    """The one event that follows an ``Ask``. ``answer`` means nothing if there is an error."""

    changefeed: ChangefeedId
    question: Question[A]
    answer: A | None = None
    error: RunningError | None = None
