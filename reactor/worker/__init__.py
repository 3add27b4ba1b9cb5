"""Worker: the loop that ticks on a state machine's behalf: watch, tick, commit."""
