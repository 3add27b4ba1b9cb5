"""Owner: decides each changefeed's state, barriers and watermark, and which capture runs which span and unit.

Pure: no clock, no tasks, no sockets. ``now`` and messages are passed in, effects are returned, and ``capture.member``
performs them.
"""
