"""Control: state machines and actors of one capture: agent, gate, spans, units and flusher. No I/O of their own."""
