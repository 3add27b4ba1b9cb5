"""Retyping: what values become when their column gets another type, as the server converts them."""
