"""Ports: what sources, sinks and executors promise. Protocols and frozen values, nothing else."""
