"""Reactor: the state that captures agree on, and the loop that maintains it.

    etcd ──watch──► buffered updates ──apply──► state
      ▲                                           │
      │                                        tick(state, inbox, now)
      │                                           ▼
      └──one transaction per patch group──── effects (patches, messages)

The package has ids, keys, the records under those keys, the messages captures exchange, patches, and the worker loop
with its optimistic transactions. It is independent of changefeed logic (``owner``), rows (``agent``), processes and
sockets (``capture``).
"""
