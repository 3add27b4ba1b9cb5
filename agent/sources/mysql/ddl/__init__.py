"""DDL: converts statements in the binlog to schema changes."""
