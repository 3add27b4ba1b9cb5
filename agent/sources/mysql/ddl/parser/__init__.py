"""Parser of DDL statements: tokens, names, types and definitions. Pure."""
