"""Schema changes and repartitioning of Delta tables, one commit each."""
