"""Processes of Weir: sockets, mailboxes, clocks and configuration. The only package that starts things."""
