"""Held tables: their causes, their way back, and the tables suspected of ending captures."""
