"""Spark: the only package that imports it or accesses its JVM."""
