"""Dialect name: the dialect stored with MySQL and MariaDB tables. They share one, since their events mostly agree."""

from typing import Final

DIALECT: Final = "mysql"
