"""Tables: schema changes, repartitioning and resyncs."""
