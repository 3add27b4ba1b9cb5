"""Common code of sinks of table formats: the changelog's rows, left-out values, and the conversion of columns."""
