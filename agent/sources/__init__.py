"""Sources: finds the plugin for a URI's scheme or a table's dialect. A source knows no other source."""

from agent.sources.registry import open_source, place_name

__all__ = ["open_source", "place_name"]
