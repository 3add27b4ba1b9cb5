"""Version: the installed version, which captures report to each other and ``weir version`` prints."""

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def installed_version() -> str:
    try:
        return version("weir-cdc")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "0+unknown"
