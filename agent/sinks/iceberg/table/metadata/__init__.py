"""Metadata of Iceberg tables: metadata files, manifests and their lists."""
