"""Schema changes and repartitioning of Delta tables, each one commit."""
