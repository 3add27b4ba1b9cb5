"""What decides: a changefeed's state, barriers and watermark, which capture has which table span and runs which unit.

Pure: no clock, no task, no socket. ``now`` and messages come in, effects go out, and ``capture.performer`` carries
them out.
"""
