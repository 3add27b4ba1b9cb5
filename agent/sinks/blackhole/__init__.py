"""Blackhole: the sink that keeps nothing."""
