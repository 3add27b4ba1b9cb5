"""Blackhole: a sink that discards everything."""
