"""Membership: leased sessions, the election of the owner, and which captures are there."""
