"""Tables: schema changes and repartitioning."""
