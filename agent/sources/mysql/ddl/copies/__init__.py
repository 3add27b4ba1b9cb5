"""Copies by online schema change tools: the tables that they make to replace others."""
