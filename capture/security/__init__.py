"""Security: certificates, tokens and encrypted secrets."""
