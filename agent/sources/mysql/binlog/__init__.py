"""Binlog: the replication stream, from bytes to log chunks."""
