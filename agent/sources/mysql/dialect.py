"""Dialect name: what tables of MySQL and MariaDB are stored with. MariaDB's are MySQL's where events do not differ."""

from typing import Final

DIALECT: Final = "mysql"
