"""Delta tables: log, files, schema, deletion vectors and commits."""
