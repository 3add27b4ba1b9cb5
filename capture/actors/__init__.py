"""Actors: mailboxes, references, supervision. Knows nothing of Weir."""
