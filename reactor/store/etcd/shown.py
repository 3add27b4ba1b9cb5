"""Shown revisions: detects that etcd has lost revisions which it has shown to this client.

An etcd that was restored from an older copy, or that was killed while it ran without fsync, numbers its next writes by
revisions that it has given out before. Weir's epochs and log files are numbered by revisions, and a watch waits for the
next one after the last that it has seen, so such an etcd must not be used.

Every answer that went through the quorum is at or past the revisions that were shown before its call began. Headers of
streams are not: a member may lag behind.
"""

from reactor.errors import RevisionsLostError


class Shown:
    """``revision``: the highest one in any answer."""

    __slots__ = ("revision",)

    def __init__(self) -> None:
        self.revision = 0

    def note(self, revision: int) -> None:
        self.revision = max(self.revision, revision)

    def check(self, revision: int, *, before: int, is_new: bool = False) -> None:
        """Note the revision of an answer that went through the quorum. ``before``: ``self.revision`` when the call
        began. ``is_new``: the call has made the revision.

        :raises RevisionsLostError: the answer is behind that.
        """
        if revision < before + is_new:
            raise RevisionsLostError.of(revision, before, "an older copy was restored, or it was killed without fsync")
        self.note(revision)
