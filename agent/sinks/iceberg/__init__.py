"""Iceberg sink: tables of an Iceberg catalog, written without a JVM."""
