"""Inspection of log files: the command `log inspect`."""
