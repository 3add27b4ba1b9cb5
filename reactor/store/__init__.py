"""Metadata store: the port, its implementation on etcd, and one in memory."""
