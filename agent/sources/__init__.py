"""Sources by their scheme, and what depends on the dialect of a table. A source knows no other one."""

from agent.sources.registry import open_source, place_name

__all__ = ["open_source", "place_name"]
