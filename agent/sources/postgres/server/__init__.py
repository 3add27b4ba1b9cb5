"""Server access: connection, catalog and slots; all SQL queries."""
