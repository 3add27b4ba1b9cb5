"""Snapshots: chunked reads of whole tables."""
