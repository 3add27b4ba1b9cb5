"""Changefeed: state, run, removal, workers."""
