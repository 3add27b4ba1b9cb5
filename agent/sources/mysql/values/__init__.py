"""Values that statements name: defaults, constants and moments, as the session of the statement means them."""
