"""Code shared by several sources."""
