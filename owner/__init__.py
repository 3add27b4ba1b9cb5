"""What decides: every changefeed's state, barriers, watermark, which capture holds which table span, which runs which unit.

Pure: no clock, no task, no socket. ``now`` and messages come in, effects go out; ``capture.performer`` carries them out.
"""
