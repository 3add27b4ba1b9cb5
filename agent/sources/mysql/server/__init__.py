"""Server: connection, catalog, grants; everything that is asked in SQL."""
