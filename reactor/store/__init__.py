"""Metadata store: the port, and its implementations on etcd, on SQL databases, and in memory."""
