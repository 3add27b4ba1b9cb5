"""Repack: a procedure that does to a table what pg_repack and pg_squeeze do: a copy, whose files become the table's."""

REPACK = """
CREATE PROCEDURE repack(name text) LANGUAGE plpgsql AS $$
DECLARE listed text;
BEGIN
  EXECUTE format('CREATE TABLE copied (LIKE %I INCLUDING ALL)', name);
  SELECT string_agg(quote_ident(attname), ', ') INTO listed
    FROM pg_attribute WHERE attrelid = 'copied'::regclass AND attnum > 0 AND attgenerated = '';
  EXECUTE format('INSERT INTO copied (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %I', listed, listed, name);
  COMMIT;
  EXECUTE format('LOCK TABLE %I', name);
  UPDATE pg_class c SET relfilenode = pg_relation_filenode(pairs.other) FROM (
    SELECT one::regclass::oid AS this, other::regclass::oid AS other FROM (VALUES
      (name, 'copied'), ('copied', name), (name || '_pkey', 'copied_pkey'), ('copied_pkey', name || '_pkey')
    ) names(one, other)) pairs WHERE c.oid = pairs.this;
  DROP TABLE copied;
END $$;
"""
