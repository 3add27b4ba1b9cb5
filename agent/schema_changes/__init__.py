"""Schema changes on their way from the change log to a sink."""
