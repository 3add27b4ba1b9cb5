"""Expressions in definitions of columns: constants, defaults, computed columns, and those that change by themselves."""
