"""Messaging between captures: in order, at least once."""
