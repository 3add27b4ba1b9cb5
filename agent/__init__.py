"""What moves rows: sources, the change log, Spark jobs, sinks, and the pure machines that steer them on one capture.

    source ──stream──► sync unit ──segments──► change log ──flush (Spark)──► sink
      └──────────dump unit (Spark)──staged Parquet──load unit───────────────►┘

``agent.control.agent``, ``gate`` and ``table_span`` decide and do no I/O; everything else here does. Owner and agent
meet only
in ``reactor.messages`` and ``reactor.records.changefeed``.
"""
