"""Logical replication stream: from bytes to log chunks."""
