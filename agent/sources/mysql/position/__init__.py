"""Positions: file and offset, GTIDs, consistent points, resuming."""
