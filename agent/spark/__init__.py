"""Spark: the only package that imports it or looks at its JVM."""
