"""Security: secrets at rest."""
