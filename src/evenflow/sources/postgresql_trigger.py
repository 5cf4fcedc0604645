"""What one watched table has, in SQL: its log, its numbers, the trigger that writes them, and the copying of its rows.

The trigger is one for each row, not for each statement with its transition tables: it pairs an old row with the new one
also where the key changes, partitions of a table inherit it, and it comes before an application's own triggers (they
run in the order of their names), which may change the same row again.

Such a trigger may also change another row that the same statement has changed. Of that the server tells first, since
the inner statement ends first, though it is the later change. So once there was a change inside a trigger, its
transaction looks up each row, and notes what it is now.
"""

from __future__ import annotations

from typing import NamedTuple

from evenflow.sources.postgresql_schema import filled_in

PARTITIONS_MOST = 256
PLAIN = {"int2", "int4", "int8", "text", "uuid", "numeric", "bool"}
"""Types whose text is the same whatever a session's settings are."""
STEADY = PLAIN | {"varchar", "bpchar", "date", "time", "timestamp", "timestamptz", "json", "jsonb"}
"""The same for what is made of them in JSON, but for the time zone."""
SETTINGS = """
    SET "DateStyle" = 'ISO' SET "IntervalStyle" = 'postgres' SET bytea_output = 'hex' SET extra_float_digits = 1
    SET lc_monetary = 'C'"""
"""For all others. It costs those who write a little."""

LOG = """
CREATE TABLE @schema@.log_@feed@ (
    partition smallint NOT NULL, sequence bigint NOT NULL,
    op "char" NOT NULL,                      -- i(nsert), u(pdate), d(elete), t(runcate); r: a row that was there
    at_us bigint NOT NULL, key text, after json, before json,
    before_sequence bigint,                  -- the number of the key's change before this one
    PRIMARY KEY (partition, sequence)
);
CREATE SEQUENCE @schema@.bell_@feed@ MINVALUE 0;
"""

BY_KEY = "CREATE INDEX ON @schema@.log_@feed@ (partition, hashtext(key), sequence);"
_BEFORE_NUMBER = """(SELECT log.sequence FROM @schema@.log_@feed@ log
                WHERE log.partition = place AND hashtext(log.key) = hashtext(@put_key@) AND log.key = @put_key@
                ORDER BY log.sequence DESC LIMIT 1)"""

# The hash is one that stays the same in every version of the server: a key must not change its partition.
_PLACE = "place := (('x' || left(md5(@put_key@), 8))::bit(32)::bigint * @partitions@) >> 32;"
_PUT = """
        IF noted IS NULL OR split_part(noted, ' ', 1) <> mark OR strpos(noted, ' ' || place || ' ') = 0 THEN
            noted := @schema@.enter(@feed@, place, mark, noted);
        END IF;
        INSERT INTO @schema@.log_@feed@ VALUES (place, @next@, '@op@',
            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, @put_key@, @after@, @before@,
            @before_number@);"""

_HEAD = """LANGUAGE plpgsql SECURITY @rights@ SET search_path = @path@ SET "TimeZone" = 'UTC'@settings@ AS $evenflow$
DECLARE
    mark CONSTANT text := pg_current_xact_id()::text;
    noted text := current_setting('@schema@.open_@feed@', true);
    place integer;"""

_NESTED = "strpos(noted, ' n ') > 0 AND split_part(noted, ' ', 1) = mark"
"""Whether there was a change inside a trigger, in this transaction."""

TRIGGER = """
CREATE OR REPLACE FUNCTION @schema@.note_@feed@() RETURNS trigger @head@
    old_key text;
    new_key text;
    row_now json;
BEGIN
    IF TG_OP <> 'INSERT' THEN
        old_key := @old_key@;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        new_key := @new_key@;
    END IF;
    -- Another key is another row: the old one is gone, and the new one may be in another partition.
    IF @nested@ THEN
        -- What was changed since then is in the log already.
        IF TG_OP <> 'INSERT' AND old_key IS DISTINCT FROM new_key
            AND NOT EXISTS (SELECT 1 FROM @rows@ mine WHERE @is_old@) THEN
            @put_delete@
        END IF;
        IF TG_OP <> 'DELETE' THEN
            SELECT row_to_json(mine) INTO row_now FROM @rows@ mine WHERE @is_new@;
            IF row_now IS NULL THEN
                RETURN NULL;
            ELSIF old_key = new_key THEN
                @put_update_now@
            ELSE
                @put_insert_now@
            END IF;
        END IF;
        RETURN NULL;
    END IF;
    IF old_key = new_key THEN
        @put_update@
    ELSE
        IF TG_OP <> 'INSERT' THEN
            @put_delete@
        END IF;
        IF TG_OP <> 'DELETE' THEN
            @put_insert@
        END IF;
    END IF;
    IF pg_trigger_depth() > 1 THEN
        PERFORM set_config('@schema@.open_@feed@', noted || 'n ', true);
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
CREATE OR REPLACE FUNCTION @schema@.fill_@feed@(after_key text[], most integer) RETURNS text[] @fill_head@
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


class Column(NamedTuple):
    bare: str
    name: str
    """The same, quoted where it must be."""
    kind: str
    """Its type, with the schema that this is in, and without a length: a cast must not cut it."""
    operators: str
    """The schema of the operators that order it."""

    @property
    def is_plain(self) -> bool:
        return self.kind.removeprefix("pg_catalog.") in PLAIN


class Table(NamedTuple):
    """A table that is watched, or is to be."""

    relation: int
    name: str
    """With its schema, quoted where it must be, as all names here."""
    is_partitioned: bool
    key: tuple[Column, ...]
    """The columns of its primary key."""
    key_at: str
    """Where they are in the table, as the server notes it."""
    is_steady: bool
    """No session's settings, but for the time zone, show in its rows as JSON."""

    def key_of(self, row: str) -> str:
        """The key as text, in SQL: of one column its value, else a list in JSON."""
        if len(self.key) > 1:
            columns = ", ".join(f"{row}.{column.name}" for column in self.key)
            return f"pg_catalog.jsonb_build_array({columns})::text"
        (column,) = self.key
        return (
            f"{row}.{column.name}::text" if column.is_plain else f"pg_catalog.to_jsonb({row}.{column.name}) #>> '{{}}'"
        )

    def is_row(self, row: str) -> str:
        """Whether `mine` has the key of this row, in SQL."""
        return " AND ".join(
            f"mine.{column.name} OPERATOR({column.operators}.=) {row}.{column.name}" for column in self.key
        )


def log(schema: str, feed: int, partitions: int, *, previous: bool) -> str:
    numbers = (
        f"CREATE SEQUENCE {schema}.number_{feed}_{place};\nCREATE SEQUENCE {schema}.end_{feed}_{place} MINVALUE 0;\n"
        for place in range(partitions)
    )
    return filled_in(LOG + BY_KEY if previous else LOG, schema=schema, feed=feed) + "".join(numbers)


def trigger(schema: str, feed: int, table: Table, partitions: int, *, previous: bool) -> str:
    """Its functions and triggers."""
    drawn = (f"WHEN {place} THEN nextval('{schema}.number_{feed}_{place}'::regclass)" for place in range(partitions))
    values = {"schema": schema, "feed": feed, "partitions": partitions, "next": f"CASE place {' '.join(drawn)} END"}
    before = "row_to_json(OLD)" if previous else "NULL"
    settings = "" if table.is_steady else SETTINGS
    head = filled_in(_HEAD, **values, rights="DEFINER", path="pg_catalog, pg_temp", settings=settings)
    # Who copies acts for itself: there may be other people's operators in that schema.
    path = ", ".join(dict.fromkeys(("pg_catalog", *(column.operators for column in table.key), "pg_temp")))
    fill_head = filled_in(_HEAD, **values, rights="INVOKER", path=path, settings=SETTINGS)

    def put(op: str, key: str, after: str = "NULL", before: str = "NULL") -> str:
        text = _PUT if key == "NULL" else f"{_PLACE}{_PUT}"
        number = "NULL" if before == "NULL" else filled_in(_BEFORE_NUMBER, **values, put_key=key)
        return filled_in(text, **values, op=op, put_key=key, after=after, before=before, before_number=number)

    return filled_in(
        TRIGGER,
        **values,
        head=head,
        fill_head=fill_head,
        table=table.name,
        rows=table.name if table.is_partitioned else f"ONLY {table.name}",
        nested=_NESTED,
        old_key=table.key_of("OLD"),
        new_key=table.key_of("NEW"),
        is_old=table.is_row("OLD"),
        is_new=table.is_row("NEW"),
        put_update=put("u", "new_key", "row_to_json(NEW)", before),
        put_delete=put("d", "old_key", before=before),
        put_insert=put("i", "new_key", "row_to_json(NEW)"),
        put_update_now=put("u", "new_key", "row_now", before),
        put_insert_now=put("i", "new_key", "row_now"),
        put_truncate=put("t", "NULL"),
        put_read=put("r", f"({table.key_of('mine')})", "row_to_json(mine)"),
        keys=", ".join(column.name for column in table.key),
        after_keys=", ".join(f"$1[{at}]::{column.kind}" for at, column in enumerate(table.key, 1)),
        last_keys=f"ARRAY[{', '.join(f'mine.{column.name}::text' for column in table.key)}]",
    )


def drop(schema: str, feed: int, partitions: int) -> str:
    numbers = (
        f"DROP SEQUENCE IF EXISTS {schema}.number_{feed}_{place}, {schema}.end_{feed}_{place};\n"
        for place in range(partitions)
    )
    return filled_in(DROP, schema=schema, feed=feed) + "".join(numbers)
