"""Changefeed runtime: puts one changefeed together from the ports, and compares both of its ends."""
