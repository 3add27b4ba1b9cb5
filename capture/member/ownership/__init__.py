"""Ownership: the controller and the owners that run on one capture, their callers, and who hears them."""
