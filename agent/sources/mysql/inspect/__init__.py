"""Inspection of binlog files, for people."""
