"""Table records: what is stored of single tables: their places, spans, holds and copies."""
