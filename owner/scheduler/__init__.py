"""Scheduler: decides which capture has which table span, and keeps that true while captures come and go."""
