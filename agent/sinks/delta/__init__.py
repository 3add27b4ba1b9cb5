"""Delta sink."""
