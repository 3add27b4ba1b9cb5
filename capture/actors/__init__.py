"""Actors: mailboxes, references and supervision, independent of Weir."""
