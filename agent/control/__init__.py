"""Machines and actors of one capture: agent, gate, spans, units, flusher. No I/O of their own."""
