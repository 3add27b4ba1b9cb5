"""Metadata store: the port, etcd, and its equal in memory."""
