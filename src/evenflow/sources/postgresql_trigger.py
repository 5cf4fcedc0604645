"""What one watched table has, in SQL: its log, its numbers, the trigger that writes them, and the copying of its rows.

The trigger is one for each row, not for each statement with its transition tables: it pairs an old row with the new one
also where the key changes, partitions of a table inherit it, and it comes before an application's own triggers (they
run in the order of their names), which may change the same row again.
"""

from __future__ import annotations

from typing import NamedTuple

from evenflow.sources.postgresql_schema import filled_in

PARTITIONS_MOST = 256
PLAIN = {"smallint", "integer", "bigint", "text", "uuid", "numeric", "boolean"}
"""Types whose text is the same whatever a session's settings are."""

LOG = """
CREATE TABLE @schema@.log_@feed@ (
    partition smallint NOT NULL, sequence bigint NOT NULL,
    op "char" NOT NULL,                      -- i(nsert), u(pdate), d(elete), t(runcate); r: a row that was there
    at_us bigint NOT NULL, key text, after json, before json,
    PRIMARY KEY (partition, sequence)
);
CREATE SEQUENCE @schema@.bell_@feed@ MINVALUE 0;
"""

# The hash is one that stays the same in every version of the server: a key must not change its partition.
_PLACE = "place := (('x' || left(md5(@put_key@), 8))::bit(32)::bigint * @partitions@) >> 32;"
_PUT = """
        IF noted IS NULL OR split_part(noted, ' ', 1) <> mark OR strpos(noted, ' ' || place || ' ') = 0 THEN
            noted := @schema@.enter(@feed@, place, mark, noted);
        END IF;
        INSERT INTO @schema@.log_@feed@ VALUES (place, @next@, '@op@',
            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, @put_key@, @after@, @before@);"""

_HEAD = """LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET "TimeZone" = 'UTC' AS $evenflow$
DECLARE
    mark CONSTANT text := pg_current_xact_id()::text;
    noted text := current_setting('@schema@.open_@feed@', true);
    place integer;"""

TRIGGER = """
CREATE OR REPLACE FUNCTION @schema@.note_@feed@() RETURNS trigger @head@
    old_key text;
    new_key text;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        old_key := @old_key@;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        new_key := @new_key@;
    END IF;
    IF old_key = new_key THEN
        @put_update@
        RETURN NULL;
    END IF;
    -- Another key is another row: the old one is gone, and the new one may be in another partition.
    IF TG_OP <> 'INSERT' THEN
        @put_delete@
    END IF;
    IF TG_OP <> 'DELETE' THEN
        @put_insert@
    END IF;
    RETURN NULL;
END $evenflow$;

CREATE OR REPLACE FUNCTION @schema@.truncate_@feed@() RETURNS trigger @head@
BEGIN
    FOR every IN 0 .. @partitions@ - 1 LOOP
        place := every;
        @put_truncate@
    END LOOP;
    RETURN NULL;
END $evenflow$;

-- Copies rows that were there before the trigger. Meanwhile it holds each of them, as whoever changes it would: so the
-- copy and the changes of its row are in order. It never waits for one row while it holds others: nobody's transaction
-- ends in a deadlock because of it. The key of the last row; NULL when there are no more.
CREATE OR REPLACE FUNCTION @schema@.fill_@feed@(after_key text[], most integer) RETURNS text[] @head@
    mine record;
    last text[];
BEGIN
    FOR mine IN EXECUTE $query$SELECT * FROM @table@ WHERE $1 IS NULL OR (@keys@) > (@after_keys@)
        ORDER BY @keys@ LIMIT $2 FOR SHARE$query$ || CASE WHEN most > 1 THEN ' NOWAIT' ELSE '' END
        USING after_key, most LOOP
        last := @last_keys@;
        @put_read@
    END LOOP;
    RETURN last;
END $evenflow$;

CREATE OR REPLACE TRIGGER "00_@schema@" AFTER INSERT OR UPDATE OR DELETE ON @table@
    FOR EACH ROW EXECUTE FUNCTION @schema@.note_@feed@();
CREATE OR REPLACE TRIGGER "00_@schema@_truncate" AFTER TRUNCATE ON @table@
    FOR EACH STATEMENT EXECUTE FUNCTION @schema@.truncate_@feed@();
ALTER TABLE @table@ ENABLE ALWAYS TRIGGER "00_@schema@";
ALTER TABLE @table@ ENABLE ALWAYS TRIGGER "00_@schema@_truncate";
"""

DROP = """
DROP FUNCTION IF EXISTS @schema@.note_@feed@ CASCADE;
DROP FUNCTION IF EXISTS @schema@.truncate_@feed@ CASCADE;
DROP FUNCTION IF EXISTS @schema@.fill_@feed@;
DROP TABLE IF EXISTS @schema@.log_@feed@;
DROP SEQUENCE IF EXISTS @schema@.bell_@feed@;
DELETE FROM @schema@.feeds WHERE id = @feed@;
"""


class Table(NamedTuple):
    """A table that is watched, or is to be."""

    relation: int
    name: str
    """With its schema, quoted where it must be."""
    key: tuple[tuple[str, str], ...]
    """The columns of its primary key, quoted, each with its type."""

    def key_of(self, row: str) -> str:
        """The key as text, in SQL: of one column its value, else a list in JSON."""
        if len(self.key) > 1:
            return f"jsonb_build_array({', '.join(f'{row}.{name}' for name, _ in self.key)})::text"
        ((name, kind),) = self.key
        return f"{row}.{name}::text" if kind in PLAIN else f"to_jsonb({row}.{name}) #>> '{{}}'"


def log(schema: str, feed: int, partitions: int) -> str:
    numbers = (f"CREATE SEQUENCE {schema}.number_{feed}_{place};\n" for place in range(partitions))
    return filled_in(LOG, schema=schema, feed=feed) + "".join(numbers)


def trigger(schema: str, feed: int, table: Table, partitions: int, *, previous: bool) -> str:
    """Its functions and triggers."""
    drawn = (f"WHEN {place} THEN nextval('{schema}.number_{feed}_{place}'::regclass)" for place in range(partitions))
    values = {"schema": schema, "feed": feed, "partitions": partitions, "next": f"CASE place {' '.join(drawn)} END"}
    before = "row_to_json(OLD)" if previous else "NULL"

    def put(op: str, key: str, after: str = "NULL", before: str = "NULL") -> str:
        text = _PUT if key == "NULL" else f"{_PLACE}{_PUT}"
        return filled_in(text, **values, op=op, put_key=key, after=after, before=before)

    return filled_in(
        TRIGGER,
        **values,
        head=filled_in(_HEAD, **values),
        table=table.name,
        old_key=table.key_of("OLD"),
        new_key=table.key_of("NEW"),
        put_update=put("u", "new_key", "row_to_json(NEW)", before),
        put_delete=put("d", "old_key", before=before),
        put_insert=put("i", "new_key", "row_to_json(NEW)"),
        put_truncate=put("t", "NULL"),
        put_read=put("r", f"({table.key_of('mine')})", "row_to_json(mine)"),
        keys=", ".join(name for name, _ in table.key),
        after_keys=", ".join(f"$1[{at}]::{kind}" for at, (_, kind) in enumerate(table.key, 1)),
        last_keys=f"ARRAY[{', '.join(f'mine.{name}::text' for name, _ in table.key)}]",
    )


def drop(schema: str, feed: int, partitions: int) -> str:
    numbers = (f"DROP SEQUENCE IF EXISTS {schema}.number_{feed}_{place};\n" for place in range(partitions))
    return filled_in(DROP, schema=schema, feed=feed) + "".join(numbers)
