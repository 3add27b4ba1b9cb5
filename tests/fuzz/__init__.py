"""Fuzzing: bytes that nobody would send, for all that reads bytes of others; see ``tests.fuzz.__main__``."""
