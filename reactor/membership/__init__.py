"""Membership: leased sessions, the election of the owner, and the captures that are present."""
