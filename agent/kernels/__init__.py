"""Numba kernels: compiles and caches them, and has the arithmetic that all decoders share."""
