"""Health: a self-test of what every capture needs to work, and what it finds."""
