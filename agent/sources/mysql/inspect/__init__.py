"""Inspection of binlog files for operators."""
