"""PostgreSQL source."""
