"""Membership of one capture: election, processors, and the work that it performs for the owner."""
