"""The command line and the console on every store that is a server: they show the same on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.contract.checkpointstores import place_of
from tests.integration.programs import end, next_line, started, wait_for
from tests.integration.test_console import ask
from tests.servers.redis_fixtures import redis_server, redis_url
from tests.unit.cli.command import facts

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.scene import Scene

__all__ = ["redis_server", "redis_url"]  # fixtures

pytestmark = pytest.mark.process

EVENTS = 3
PROFILE = """
default = "here"

[profiles.here]
source = "hub:homes"
store = "{store}"
group = "alerts"
"""


@pytest.fixture(params=["postgresql", "redis", "azblob", "s3"])
def scene(request: pytest.FixtureRequest, scene: Scene, tmp_path: Path) -> Scene:
    """One instance that owns two partitions, and has handled what there is; and a profile for the tools."""
    scene.store_url = scene.look_url = place_of(request.param, request, tmp_path)
    (scene.folder / "evenflow.toml").write_text(PROFILE.format(store=scene.store_url))
    scene.make_hub(2)
    scene.send_to_all([b"x"] * EVENTS)
    scene.start_even("ada")
    scene.wait_until_handled()
    return scene


def asked(scene: Scene, *arguments: str) -> Any:
    """By the command line in this process: eight commands on four stores would be many programs to start."""
    return facts(*arguments, folder=scene.folder)


def test_the_tools_know_it(scene: Scene) -> None:
    (group,) = asked(scene, "group", "list")["groups"]
    assert [group[name] for name in ("namespace", "hub", "group")] == ["local", "homes", "alerts"]
    assert (group["members"], group["partitions"], group["owned"]) == (1, 2, 2)

    wait_for(lambda: asked(scene, "lag")["lag"] == 0, "the checkpoints")
    status = asked(scene, "status")
    assert [member["id"] for member in status["members"]] == ["ada"]
    assert {row["owner"] for row in status["partitions"]} == {"ada"}
    assert [row["sequence"] for row in asked(scene, "lag")["partitions"]] == [EVENTS - 1] * 2

    assert asked(scene, "explain", "1")["owner"] == "ada"
    plan = asked(scene, "plan", "--members", "2")
    assert (len(plan["moves"]), [share["share"] for share in plan["shares"]]) == (1, [1, 1])

    asked(scene, "group", "pause", "--partition", "1", "--yes", "--why", "a look")
    wait_for(lambda: scene.leases()["1"].owner is None, "the instance to let go of it")
    assert [row["status"] for row in asked(scene, "status")["partitions"]] == ["ok", "paused"]
    asked(scene, "group", "resume", "--partition", "1", "--yes")
    scene.wait_until_even(scene.instances[0])

    with started("console", "--port", "0", "--no-open", "--every", "0.5", folder=scene.folder) as console:
        address = next_line(console).strip()
        rows = wait_for(lambda: ask(address, "/api/rows?group=local/homes/alerts")[1].get("rows"), "the first look")
        assert sorted((partition, status) for partition, _, status, *_ in rows) == [("0", "ok"), ("1", "ok")]
        code, _, err = end(console)
        assert (code, "Traceback" in err) == (0, False), err
