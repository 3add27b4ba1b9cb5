"""Changefeed runtime: connects the ports for one changefeed, and compares source and sink."""
