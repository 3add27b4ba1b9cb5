"""Delta tables: log, files, schema, deletion vectors, one commit."""
