"""The grace of a capture that has left is a part of the session's length, and short."""

import pytest

from reactor.settings import ReactorSettings


@pytest.mark.parametrize(("ttl_s", "grace_s"), [(5, 0.5), (10, 1.0), (30, 1.0)])
def test_a_capture_that_left_is_shown_for_a_tenth_of_a_session_or_one_second(ttl_s: int, grace_s: float) -> None:
    assert ReactorSettings(session_ttl_s=ttl_s).capture_removal_grace_s == grace_s


def test_a_session_that_two_lost_keep_alives_would_end_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 5"):
        ReactorSettings(session_ttl_s=2)
