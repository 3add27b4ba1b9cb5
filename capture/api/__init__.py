"""Cluster port and its interfaces: HTTP, client, Python, metrics."""
