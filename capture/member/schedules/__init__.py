"""Schedules: what a member does for changefeeds from time to time."""
