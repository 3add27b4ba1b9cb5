"""Values in statements: defaults, constants and dates, evaluated as in the statement's session."""
