"""Rewriters: who gave a table its file. A rewrite also writes the rows of the table's indexes in ``pg_class``. Pure."""


def writers_sql(leaves: str) -> str:
    """Return a subquery of (``relid``, ``age``, ``xmin``, ``command``): who wrote the rows of each leaf's indexes in
    ``pg_class`` last (its own row, if it has none), and by which command; a large number where that is unknown, as
    another transaction has tried to since. ``leaves``: a subquery of oids."""
    return f"""(
SELECT relid, pg_catalog.age(c.xmin) AS age, c.xmin::text AS xmin,
       min(CASE WHEN c.xmax::text = '0' THEN c.cmin::text::int8 ELSE 4294967295 END) AS command
  FROM {leaves} leaves(relid) JOIN pg_catalog.pg_class c
    ON c.oid IN (SELECT indexrelid FROM pg_catalog.pg_index WHERE indrelid = relid)
    OR c.oid = relid AND NOT EXISTS (SELECT FROM pg_catalog.pg_index WHERE indrelid = relid)
 GROUP BY relid, c.xmin::text, age)"""


def written_sql(xmin: int, command: int) -> str:
    """Return an SQL condition of rows that a rewrite wrote. What its transaction writes behind that is later."""
    return f"xmin::text = '{xmin}' AND (xmax::text <> '0' OR cmin::text::int8 <= {command})"
