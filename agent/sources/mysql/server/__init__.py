"""Server access: connection, catalog and grants; all SQL queries."""
