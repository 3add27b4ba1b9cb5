"""Iceberg tables: catalog, schema, files, manifests and commits."""
