"""Scheduler: assigns each table span to one capture, and maintains that while captures come and go."""
