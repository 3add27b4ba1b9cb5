"""Data plane: moves rows through sources, the change log, Spark jobs and sinks, and controls them on one capture.

    source ──stream──► sync unit ──segments──► change log ──flush (Spark)──► sink
      └──────────dump unit (Spark)──staged Parquet──load unit───────────────►┘

``agent.control.agent``, ``gate`` and ``table_span`` decide without I/O; the other modules perform it. Owner and agent
meet only in ``reactor.messages`` and ``reactor.records``.
"""
