"""Decoding of pgoutput rows to Arrow."""
