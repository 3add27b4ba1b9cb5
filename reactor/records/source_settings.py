"""Source settings: the source's own part of a changefeed's configuration, and how it is stored.

Users write it below ``[source]``, with hyphens or underscores. Settings known to v0.1.0 are stored where v0.1.0
expects them, among the other settings.
"""

from typing import Any, Final

from pydantic_core import PydanticCustomError

Setting = bool | int | float | str

#: settings of a source that are stored among the others
STORED_FLAT: Final = ("slot", "publication", "zero_dates", "unlogged_cascades")


def placed(data: Any) -> Any:
    """Return a configuration as written by a user, with each setting where it is stored.

    :raises PydanticCustomError: one is set twice.
    """
    if not isinstance(data, dict) or not isinstance(given := data.get("source"), dict):
        return data
    given = {str(name).replace("-", "_"): value for name, value in given.items()}
    flat = {name: value for name, value in given.items() if name in STORED_FLAT}
    for name, value in flat.items():
        if data.get(name, value) != value:
            raise PydanticCustomError(
                "twice",
                "{name} is set below [source] and outside of it; keep the one below [source]",
                {"name": name.replace("_", "-")},
            )
    return {**data, **flat, "source": {name: value for name, value in given.items() if name not in flat}}
