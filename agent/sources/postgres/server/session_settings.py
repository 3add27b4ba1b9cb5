"""Session settings: what every session with PostgreSQL begins with, whatever the role's and the database's are."""

from typing import Final

#: the text form of values is unique, and queries are complete
SESSION: Final = {
    "client_encoding": "UTF8",
    "datestyle": "ISO",
    "timezone": "UTC",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "quote_all_identifiers": "off",
    # an error instead of fewer rows
    "row_security": "off",
    # a question of ours, or a session between two, may take as long as it needs; so may a transaction: see ``unlimit``
    "statement_timeout": "0",
    "idle_session_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    # publications are made and dropped, and no question waits for others' transactions
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
}
#: Values of ``regclass`` and similar types include the schema unless it is in the search path. Streams have an empty
#: search path from the start; sessions that read values set it.
STREAM_SESSION: Final = SESSION | {"search_path": ""}
QUALIFIED_NAMES_SQL: Final = "SET search_path = ''"
