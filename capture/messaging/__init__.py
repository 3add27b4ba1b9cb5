"""Messages between captures: ordered, at least once."""
