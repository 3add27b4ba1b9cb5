"""Numba kernels: how they are compiled and cached, and the arithmetic that every decoder shares."""
