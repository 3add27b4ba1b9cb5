"""Folds: the net changes of a flush, or its versions, with memory that does not grow with a transaction."""
