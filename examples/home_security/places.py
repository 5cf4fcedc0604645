"""The paths in a demo's folder, and the homes' clock."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from evenflow.errors import Misconfigured

if TYPE_CHECKING:
    from pathlib import Path

AGGREGATE, ALERTS = "aggregate", "alerts"
"""The two groups."""
GROUPS = (AGGREGATE, ALERTS)
PARTITIONS = 16
FREE_BYTES = 4 << 20


def machine_ms() -> float:
    """The monotonic clock, which all processes of this machine share. It stops while a laptop sleeps, so that homes do
    not have to catch up."""
    return time.monotonic() * 1000


class Pace(Struct, frozen=True, kw_only=True):
    """The homes' clock, in terms of this machine's: it began somewhere, and may go faster."""

    begin_ms: int
    """By the homes' clock."""
    begin_machine_ms: int
    speed: float

    def home_ms(self, at_ms: float) -> int:
        """What the homes' clocks say when this machine's says `at_ms`."""
        return self.begin_ms + int((at_ms - self.begin_machine_ms) * self.speed)


class Town(Struct, frozen=True, kw_only=True):
    """Whose homes they are: from this alone, everything that ever happens in them follows."""

    homes: int
    seed: int = 0


class Scene(Struct, frozen=True, kw_only=True):
    """What all processes of a demo have to agree on; one of them writes it down."""

    town: Town
    pace: Pace
    blobs: str
    """A folder or a URL."""
    write_s: float = 2.0
    """How often recent parts are rewritten."""


class Place:
    """A demo's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def hub(self) -> Path:
        return self.folder / "homes"

    @property
    def leases(self) -> Path:
        return self.folder / "leases"

    @property
    def blobs(self) -> Path:
        """By default."""
        return self.folder / "blobs"

    @property
    def account(self) -> Path:
        """What the generator says that it has sent."""
        return self.folder / "sent.json"

    @property
    def detectors(self) -> Path:
        """When this file is there, homes have carbon-monoxide detectors from then on."""
        return self.folder / "detectors"

    @property
    def generator_log(self) -> Path:
        return self.folder / "generator.log"

    @property
    def is_full(self) -> bool:
        """Whether its disk is full: nothing continues before space is freed."""
        return shutil.disk_usage(self.folder).free < FREE_BYTES

    @property
    def has_run(self) -> bool:
        """Whether processes have run, so that their logs may be of interest."""
        return self.generator_log.exists()

    def group(self, name: str) -> Path:
        """Where a group's consumers have their accounts and logs."""
        path = self.folder / name
        path.mkdir(exist_ok=True)
        return path

    @property
    def dead_letters(self) -> Path:
        return self.folder / "dead-letters"

    @property
    def injected(self) -> Path:
        """Reports that were injected in addition to the generator's."""
        return self.folder / "injected.jsonl"

    def save(self, scene: Scene) -> None:
        (self.folder / "scene.json").write_bytes(msgspec.json.encode(scene))

    def scene(self) -> Scene:
        try:
            return msgspec.json.decode((self.folder / "scene.json").read_bytes(), type=Scene)
        except OSError as error:
            raise Misconfigured(
                f"There is no demo in {self.folder}: name the folder that it prints when it starts."
            ) from error
