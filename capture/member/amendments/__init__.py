"""Amendments: changes of existing changefeeds, and of single tables of theirs."""
