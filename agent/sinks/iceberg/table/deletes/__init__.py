"""Deleted rows of Iceberg tables: position deletes and deletion vectors."""
