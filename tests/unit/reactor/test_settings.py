"""Settings of a session: their bounds, and values derived from them."""

import pytest

from reactor.settings import ReactorSettings


def test_a_capture_that_left_costs_next_to_nothing_beyond_its_lease() -> None:
    """Lease, grace and placing tables together must stay within the session's time plus 5 s."""
    assert ReactorSettings().capture_removal_grace_s <= 0.25


def test_a_session_that_two_lost_keep_alives_would_end_is_refused() -> None:
    with pytest.raises(ValueError, match="greater than or equal to 5"):
        ReactorSettings(session_ttl_s=2)
