"""What runs: processes, sockets, mailboxes, clocks, configuration. The only package that starts things."""
