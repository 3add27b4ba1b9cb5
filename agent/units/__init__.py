"""Units: dump, load and sync, the three stages of work on a source."""
