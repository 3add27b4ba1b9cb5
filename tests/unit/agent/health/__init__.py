"""Tests of the capture's own faults."""
