"""Owner: decides each changefeed's state, barriers and watermark, and which capture runs which span and unit.

Pure: no clock, no task, no socket. ``now`` and messages come in, effects go out, and ``capture.member`` carries
them out.
"""
