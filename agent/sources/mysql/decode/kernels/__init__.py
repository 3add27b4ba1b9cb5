"""Kernels of the second pass: values of located rows into Arrow's buffers, one module per group of types."""
