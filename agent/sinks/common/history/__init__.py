"""History tables: their columns, and what copies of their sources change in them."""
