"""Answer of a database: how large one about its tables may be, whatever answers."""

from typing import Final

#: a hundred thousand tables of a hundred columns are described in less
ANSWER_BYTES_MAX: Final = 1 << 30
