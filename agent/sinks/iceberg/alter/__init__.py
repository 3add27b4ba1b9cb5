"""Iceberg alterations: schema changes, copies in a table's place, and other spans."""
