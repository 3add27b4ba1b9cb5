"""Repack: a procedure that does to a table what pg_repack and pg_squeeze do: a copy, whose files become the table's.

It takes tables with a primary key, no other index and no dropped column.
"""

REPACK = """
CREATE PROCEDURE repack(name text) LANGUAGE plpgsql AS $$
DECLARE
  listed text;
  keys oid[];
BEGIN
  IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = name::regclass AND attisdropped) THEN
    RAISE 'a copy would have other columns';
  END IF;
  EXECUTE format('CREATE TABLE copied (LIKE %I INCLUDING ALL)', name);
  SELECT string_agg(quote_ident(attname), ', ') INTO listed
    FROM pg_attribute WHERE attrelid = 'copied'::regclass AND attnum > 0 AND attgenerated = '';
  EXECUTE format('INSERT INTO copied (%s) OVERRIDING SYSTEM VALUE SELECT %s FROM %I', listed, listed, name);
  SELECT array_agg(indexrelid ORDER BY indrelid) INTO STRICT keys FROM pg_index
    WHERE indrelid IN (name::regclass, 'copied'::regclass);
  IF array_length(keys, 1) <> 2 THEN
    RAISE 'not one index';
  END IF;
  COMMIT;
  EXECUTE format('LOCK TABLE %I', name);
  UPDATE pg_class c SET relfilenode = pg_relation_filenode(pairs.other) FROM (VALUES
    (name::regclass::oid, 'copied'::regclass::oid), ('copied'::regclass::oid, name::regclass::oid),
    (keys[1], keys[2]), (keys[2], keys[1])) pairs(this, other) WHERE c.oid = pairs.this;
  -- and what is stored apart
  UPDATE pg_class c SET reltoastrelid = other.reltoastrelid FROM pg_class other
    WHERE (c.oid, other.oid) IN ((name::regclass, 'copied'::regclass), ('copied'::regclass, name::regclass));
  UPDATE pg_depend d SET refobjid = c.oid FROM pg_class c
    WHERE c.oid IN (name::regclass, 'copied'::regclass) AND d.objid = c.reltoastrelid AND c.reltoastrelid <> 0
      AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.deptype = 'i';
  DROP TABLE copied;
END $$;
"""
