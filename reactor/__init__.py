"""Reactor: the state that captures agree on, and the loop that keeps it true.

    etcd ──watch──► buffered updates ──apply──► state
      ▲                                           │
      │                                        tick(state, inbox, now)
      │                                           ▼
      └──one transaction per patch group──── effects (patches, messages)

The package holds ids, keys, the records under those keys, the messages captures exchange, patches, and the
worker loop with its optimistic transactions. It knows nothing of changefeeds' meaning (that is ``owner``), of
rows (``agent``), or of processes and sockets (``capture``).
"""
