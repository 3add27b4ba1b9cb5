"""Schema changes: from the change log to a sink."""
