"""Metadata: which capture owns which changefeed: the schedule's state machine, and who may write what of it."""
