"""Server: connection, catalog, slots; everything that is asked in SQL."""
