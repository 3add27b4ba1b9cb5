"""MySQL and MariaDB source."""
