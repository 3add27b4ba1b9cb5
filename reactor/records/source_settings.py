"""Source settings: the part of a changefeed's configuration that only its source knows, and how it is stored.

Users write it below ``[source]``. What v0.1.0 knew of it is stored where v0.1.0 looks for it, among the other settings.
"""

from typing import Any, Final

from pydantic_core import PydanticCustomError

Setting = bool | int | float | str

#: settings of a source that lie among the others in what is stored
STORED_FLAT: Final = ("slot", "publication", "zero_dates", "unlogged_cascades")


def placed(data: Any) -> Any:
    """A configuration as it was written, with each setting where it is stored.

    :raises PydanticCustomError: one is set twice.
    """
    if not isinstance(data, dict) or not isinstance(given := data.get("source"), dict):
        return data
    flat = {name: value for name, value in given.items() if name in STORED_FLAT}
    for name, value in flat.items():
        if data.get(name, value) != value:
            raise PydanticCustomError(
                "twice",
                "{name} is set below [source] and outside of it; keep the one below [source]",
                {"name": name.replace("_", "-")},
            )
    return {**data, **flat, "source": {name: value for name, value in given.items() if name not in flat}}
