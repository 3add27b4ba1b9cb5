"""Division: large values in keys of their own, see ``divided``; and how they are written, see ``writes``."""
