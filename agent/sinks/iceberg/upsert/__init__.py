"""Iceberg upserts: finds the rows of changed keys, and replaces them through position deletes."""
