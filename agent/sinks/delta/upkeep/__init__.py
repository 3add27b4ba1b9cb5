"""Upkeep of Delta tables: compaction, and removal of old files."""
