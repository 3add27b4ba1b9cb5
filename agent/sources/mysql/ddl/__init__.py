"""DDL: statements to schema changes."""
