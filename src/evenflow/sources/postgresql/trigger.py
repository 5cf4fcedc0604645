"""The SQL of one watched table: its log, its numbers, the trigger that writes them, and the function that copies rows.

It is a row-level trigger, not a statement-level one with transition tables: it pairs the old row with the new one even
if the key changes, partitions of a table inherit it, and it runs before the application's own triggers (triggers run
in the order of their names), which may change the same row again.

Such a trigger of the application may also change another row that the same statement has changed. The server reports
that change first, because the inner statement ends first, although it is the later change. So from the first change
inside a trigger on, the transaction looks up each row and logs its current state. The previous image is then the last
one in the log, if it has one: the server reports intermediate versions that are not in the log.

Names of tables and columns can be anything: aliases are written so that they cannot be confused with a column
(`mine.*`, never `mine`), and function bodies use a quote that no name contains.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from evenflow.sources.postgresql.schema import VERSION, filled_in

PARTITIONS_MOST = 256
MADE_BY = f"-- version {VERSION}\n"
"""A marker in the trigger function of this version of evenflow."""
PLAIN = {"int2", "int4", "int8", "text", "uuid", "numeric", "bool"}
"""Types whose text does not depend on a session's settings."""
STEADY = PLAIN | {"varchar", "bpchar", "date", "time", "timestamp", "timestamptz", "json", "jsonb"}
"""Types whose JSON does not depend on a session's settings other than the time zone."""
SETTINGS = """
    SET "DateStyle" = 'ISO' SET "IntervalStyle" = 'postgres' SET bytea_output = 'hex' SET extra_float_digits = 1
    SET lc_monetary = 'C'"""
"""For all other types. It costs writers a little."""

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
LATER = """CREATE INDEX IF NOT EXISTS log_@feed@_later ON @schema@.log_@feed@ (partition, hashtext(key), sequence)
    WHERE op IN ('u', 'd', 't');"""
"""If only latest versions are kept, readers use this to skip changes that were replaced or removed since. Inserts
replace nothing and are not in the index, so they do not pay for it."""
_BEFORE_NUMBER = """(SELECT log.sequence FROM @schema@.log_@feed@ log
                WHERE log.partition = place AND hashtext(log.key) = hashtext(@put_key@) AND log.key = @put_key@
                ORDER BY log.sequence DESC LIMIT 1)"""
_IMAGE = """(SELECT log.after FROM @schema@.log_@feed@ log
                WHERE log.partition = place AND hashtext(log.key) = hashtext(@put_key@) AND log.key = @put_key@
                    AND log.sequence > coalesce((SELECT emptied.sequence FROM @schema@.log_@feed@ emptied
                        WHERE emptied.partition = place AND hashtext(emptied.key) IS NULL
                        ORDER BY emptied.sequence DESC LIMIT 1), 0)
                ORDER BY log.sequence DESC LIMIT 1)"""
"""The last image of a row in the log: NULL if there is none, or if the row was removed."""

# This hash is the same in all versions of the server: a key must not change its partition.
_PLACE = "place := (('x' || left(md5(@put_key@), 8))::bit(32)::bigint * @partitions@) >> 32;"
_PUT = """
        IF noted IS NULL OR split_part(noted, ' ', 1) <> mark OR strpos(noted, ' ' || place || ' ') = 0 THEN
            noted := @schema@.enter(@feed@, place, mark, noted);
        END IF;
        INSERT INTO @schema@.log_@feed@ VALUES (place, @next@, '@op@',
            (extract(epoch FROM clock_timestamp()) * 1000000)::bigint, @put_key@, @after@, @before@,
            @before_number@);"""

_HEAD = """LANGUAGE plpgsql SECURITY @rights@ SET search_path = @path@ SET "TimeZone" = 'UTC'@settings@ AS @quote@
DECLARE
    mark CONSTANT text := pg_current_xact_id()::text;
    noted text := current_setting('@schema@.open_@feed@', true);
    place integer;"""

_NESTED = "strpos(noted, ' n ') > 0 AND split_part(noted, ' ', 1) = mark"
"""Whether this transaction had a change inside a trigger."""

TRIGGER = """
CREATE OR REPLACE FUNCTION @schema@.note_@feed@() RETURNS trigger @head@
    old_key text;
    new_key text;
    row_now json;
    was json;
BEGIN
    @made_by@    IF TG_OP <> 'INSERT' THEN
        old_key := @old_key@;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        new_key := @new_key@;
    END IF;
    -- A changed key is a deleted row and a new one, which may be in another partition.
    IF pg_trigger_depth() > 1 OR @nested@ THEN
        -- Later changes of the row are in the log already.
        IF TG_OP <> 'INSERT' AND old_key IS DISTINCT FROM new_key
            AND NOT EXISTS (SELECT 1 FROM @rows@ mine WHERE @is_old@) THEN
            @place_old@
            was := coalesce(@image_old@, row_to_json(OLD));
            @put_delete_now@
        END IF;
        IF TG_OP <> 'DELETE' THEN
            SELECT row_to_json(mine.*) INTO row_now FROM @rows@ mine WHERE @is_new@;
        END IF;
        IF row_now IS NOT NULL THEN
            @place_new@
            was := @image_new@;
            IF was IS NULL AND old_key = new_key THEN
                was := row_to_json(OLD);
            END IF;
            IF was IS NULL THEN
                @put_insert_now@
            ELSE
                @put_update_now@
            END IF;
        END IF;
        IF pg_trigger_depth() > 1 AND strpos(noted, ' n ') = 0 THEN
            PERFORM set_config('@schema@.open_@feed@', noted || 'n ', true);
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
    RETURN NULL;
END @quote@;

CREATE OR REPLACE FUNCTION @schema@.truncate_@feed@() RETURNS trigger @head@
BEGIN
    FOR every IN 0 .. @partitions@ - 1 LOOP
        place := every;
        @put_truncate@
    END LOOP;
    RETURN NULL;
END @quote@;

-- Copies rows that existed before the trigger. It locks each row like a writer would, so the copy is in order with the
-- row's changes. It never waits for a row while it holds locks on others, so it cannot cause a deadlock. Returns the
-- key of the last row; NULL if there are no more.
CREATE OR REPLACE FUNCTION @schema@.fill_@feed@(after_key text[], most integer) RETURNS text[] @fill_head@
    mine record;
    last text[];
BEGIN
    FOR mine IN EXECUTE @inner_quote@SELECT * FROM @table@ WHERE $1 IS NULL OR (@keys@) > (@after_keys@)
        ORDER BY @keys@ LIMIT $2 FOR SHARE@inner_quote@ || CASE WHEN most > 1 THEN ' NOWAIT' ELSE '' END
        USING after_key, most LOOP
        last := @last_keys@;
        @put_read@
    END LOOP;
    RETURN last;
END @quote@;

@later@
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


class KeyColumn(NamedTuple):
    bare: str
    name: str
    """The same, quoted if necessary."""
    kind: str
    """Its type, qualified and without a length, so that a cast does not truncate."""
    operators: str
    """The schema of its comparison operators."""

    @property
    def is_plain(self) -> bool:
        return self.kind.removeprefix("pg_catalog.") in PLAIN


class WatchedTable(NamedTuple):
    """A table that is watched, or will be."""

    relation: int
    name: str
    """The qualified name, quoted if necessary."""
    is_partitioned: bool
    key: tuple[KeyColumn, ...]
    """The columns of its primary key."""
    key_at: str
    """Their column numbers, as in pg_index.indkey."""
    is_steady: bool
    """The JSON of its rows does not depend on a session's settings other than the time zone."""

    def key_of(self, row: str) -> str:
        """The key as text, in SQL: the value of a single column, or a JSON list."""
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
    return filled_in(LOG + (BY_KEY if previous else LATER), schema=schema, feed=feed) + "".join(numbers)


def trigger(schema: str, feed: int, table: WatchedTable, partitions: int, *, previous: bool) -> str:
    """The functions and triggers of a table."""
    drawn = (f"WHEN {place} THEN nextval('{schema}.number_{feed}_{place}'::regclass)" for place in range(partitions))
    values = {"schema": schema, "feed": feed, "partitions": partitions, "next": f"CASE place {' '.join(drawn)} END"}
    values["quote"], values["inner_quote"] = (_quote(table, word) for word in ("evenflow", "query"))
    before = "row_to_json(OLD)" if previous else "NULL"
    was = "was" if previous else "NULL"
    settings = "" if table.is_steady else SETTINGS
    head = filled_in(_HEAD, **values, rights="DEFINER", path="pg_catalog, pg_temp", settings=settings)
    # The copying function runs with the caller's rights, because that schema may contain operators of other users.
    path = ", ".join(dict.fromkeys(("pg_catalog", *(column.operators for column in table.key), "pg_temp")))
    fill_head = filled_in(_HEAD, **values, rights="INVOKER", path=path, settings=SETTINGS)

    def placed(key: str) -> str:
        return filled_in(_PLACE, **values, put_key=key)

    def image(key: str) -> str:
        return filled_in(_IMAGE, **values, put_key=key) if previous else "NULL"

    def put(op: str, key: str, after: str = "NULL", before: str = "NULL") -> str:
        """Inserts into the partition `place`."""
        number = "NULL" if before == "NULL" else filled_in(_BEFORE_NUMBER, **values, put_key=key)
        return filled_in(_PUT, **values, op=op, put_key=key, after=after, before=before, before_number=number)

    copied_key = f"({table.key_of('mine')})"
    return filled_in(
        TRIGGER,
        **values,
        made_by=MADE_BY,
        later="" if previous else filled_in(LATER, **values),
        head=head,
        fill_head=fill_head,
        table=table.name,
        rows=table.name if table.is_partitioned else f"ONLY {table.name}",
        nested=_NESTED,
        old_key=table.key_of("OLD"),
        new_key=table.key_of("NEW"),
        is_old=table.is_row("OLD"),
        is_new=table.is_row("NEW"),
        place_old=placed("old_key"),
        place_new=placed("new_key"),
        image_old=image("old_key"),
        image_new=image("new_key"),
        put_update=placed("new_key") + put("u", "new_key", "row_to_json(NEW)", before),
        put_delete=placed("old_key") + put("d", "old_key", before=before),
        put_insert=placed("new_key") + put("i", "new_key", "row_to_json(NEW)"),
        put_update_now=put("u", "new_key", "row_now", was),
        put_delete_now=put("d", "old_key", before=was),
        put_insert_now=put("i" if previous else "u", "new_key", "row_now"),  # without images, it may be an update
        put_truncate=put("t", "NULL"),
        put_read=placed(copied_key) + put("r", copied_key, "row_to_json(mine)"),
        keys=", ".join(column.name for column in table.key),
        after_keys=", ".join(f"$1[{at}]::{column.kind}" for at, column in enumerate(table.key, 1)),
        last_keys=f"ARRAY[{', '.join(f'mine.{column.name}::text' for column in table.key)}]",
    )


def _quote(table: WatchedTable, word: str) -> str:
    """A dollar quote that none of the table's names contains."""
    names = [table.name, *(name for column in table.key for name in column)]
    quotes = (f"${word}{count}$" for count in itertools.count())
    return next(quote for quote in quotes if not any(quote in name for name in names))


def drop(schema: str, feed: int, partitions: int) -> str:
    numbers = (
        f"DROP SEQUENCE IF EXISTS {schema}.number_{feed}_{place}, {schema}.end_{feed}_{place};\n"
        for place in range(partitions)
    )
    return filled_in(DROP, schema=schema, feed=feed) + "".join(numbers)
