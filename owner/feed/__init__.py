"""Changefeed: its state, run, removal and workers."""
