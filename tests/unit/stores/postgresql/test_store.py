"""What the PostgreSQL store decides without a server: its URL, what it shows of it, and what may be said inside."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evenflow.drivers.postgresql.driver import check_name, split_options
from evenflow.errors import Misconfigured
from evenflow.stores.postgresql.store import PostgreSQLStore, from_url, script
from evenflow.stores.postgresql.transactions import refusal
from evenflow.urls import open_store

SECRET = "geheim!"
URL = "postgresql://anna:geheim%21@db.example:5433/homes?sslmode=prefer&schema=alerts&listen=off&transactions=3"


def test_a_url_has_options_of_ours_and_of_the_driver() -> None:
    rest, given = split_options(URL, {"schema", "listen", "transactions"})
    assert rest == "postgresql://anna:geheim%21@db.example:5433/homes?sslmode=prefer"
    assert given == {"schema": "alerts", "listen": "off", "transactions": "3"}
    store = open_store(URL.replace("postgresql:", "postgres:"))
    assert isinstance(store, PostgreSQLStore)


def test_without_its_driver_it_names_the_extra() -> None:
    program = (
        "import sys; sys.modules['psycopg'] = None\n"
        "from evenflow.errors import Misconfigured\n"
        "from evenflow.urls import open_store\n"
        "try: open_store('postgresql://db.example/homes')\n"
        "except Misconfigured as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "pip install 'evenflow[postgresql]'" in run.stdout


def test_it_shows_no_password() -> None:
    store = from_url(URL)
    assert repr(store) == "PostgreSQLStore('postgresql://db.example:5433/homes', schema='alerts')"
    assert SECRET not in str(store._address)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://anna:geheim!@[nonsense/homes",
        "postgresql://anna:geheim!@db.example:port/homes",
        "postgresql://anna:geheim!@db.example/homes?listen=perhaps",
        "postgresql://anna:geheim!@db.example/homes?transactions=0",
        "postgresql://anna:geheim!@db.example/homes?transactions=many",
        "postgresql://anna:geheim!@db.example/homes?schema=Mine",
        "postgresql://anna:geheim!@db.example/homes?schema=x;drop",
        "postgresql://anna:geheim!@db.example/homes?schema=pg_mine",
        "postgresql://anna:geheim!@db.example/homes?no_such_option=1",
    ],
)
def test_a_wrong_url_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(Misconfigured) as caught:
        from_url(url)
    chain: BaseException | None = caught.value
    while chain is not None:
        assert SECRET not in str(chain)
        chain = chain.__cause__ or (None if chain.__suppress_context__ else chain.__context__)


def test_a_schema_has_a_plain_name() -> None:
    assert check_name("evenflow_2") == "evenflow_2"
    for name in ("", "1st", "a-b", 'a"b', "a" * 41, "Ä", "pg_x"):
        with pytest.raises(Misconfigured, match="schema="):
            check_name(name)


def test_a_script_is_for_one_schema_and_quotes_its_role() -> None:
    text = script("mine", 'a"b')
    assert "evenflow.heartbeat" not in text
    assert "CREATE OR REPLACE FUNCTION mine.heartbeat(" in text
    assert 'TO "a""b";' in text


@pytest.mark.parametrize(
    "statement",
    [
        "COMMIT",
        "commit;",
        "  -- done\n COMMIT",
        "/* done */ end",
        "ROLLBACK",
        "rollback and chain",
        "ABORT",
        "BEGIN",
        "START TRANSACTION",
        "PREPARE TRANSACTION 'x'",
        "SET statement_timeout = 0",
        "set session x.y = 1",
        "RESET ALL",
        "DISCARD ALL",
        "LISTEN x",
        "CREATE TEMP TABLE t (x int)",
        "create local temporary table t (x int)",
    ],
)
def test_what_ends_the_transaction_or_outlives_it_is_refused(statement: str) -> None:
    assert refusal(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "INSERT INTO commits VALUES ('COMMIT')",
        "SELECT 1 -- COMMIT",
        "SAVEPOINT a",
        "ROLLBACK TO a",
        "ROLLBACK WORK TO SAVEPOINT a",
        "RELEASE a",
        "SET LOCAL work_mem = '1MB'",
        "SET CONSTRAINTS ALL DEFERRED",
        "CREATE TEMP TABLE t (x int) ON COMMIT DROP",
        "CREATE TABLE temp (x int)",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "beginning",
        "",
    ],
)
def test_other_statements_are_the_applications_own(statement: str) -> None:
    assert refusal(statement) == ""
