"""Ports: the protocols of sources, sinks and executors, and the frozen values that they exchange."""
