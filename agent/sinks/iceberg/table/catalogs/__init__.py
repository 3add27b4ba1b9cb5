"""Catalogs of Iceberg tables: opened from a sink's URI."""
