"""How `MODULE:PROCESSOR` is loaded, and the errors if it cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from evenflow.changefeed import ChangeFeedProcessor
from evenflow.cli.worker import check_id, load
from evenflow.errors import Misconfigured
from evenflow.runtime.processor import Processor

if TYPE_CHECKING:
    from pathlib import Path

APP = """
from evenflow.runtime.processor import Processor

processor = Processor("hub:homes", "memory:", "alerts")

def make():
    return Processor("hub:homes", "memory:", "made")

class Settings:
    processor = processor

number = 7

async def handle(event, partition): ...

async def make_async(): ...
"""


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"app_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APP)
    (tmp_path / f"{name}_broken.py").write_text("import a_module_that_is_not_there")
    (tmp_path / f"{name}_odd.py").write_text("def (")
    (tmp_path / f"{name}_failing.py").write_text("x = 1\ny = {}['key']")
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_the_target_is_an_object_a_function_or_an_attribute(app: str) -> None:
    assert load(f"{app}:processor").settings.group == "alerts"
    assert load(f"{app}:make").settings.group == "made"
    assert load(f"{app}:Settings.processor").settings.group == "alerts"


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("{app}", "'{app}' is not MODULE:PROCESSOR"),
        ("{app}:", "'{app}:' is not MODULE:PROCESSOR"),
        (":processor", "':processor' is not MODULE:PROCESSOR"),
        ("{app}:nope", "has no 'nope'"),
        ("{app}:number", "is of type int; name a Processor"),
        ("{app}_nope:processor", "Cannot import '{app}_nope': no such module. Run from the directory"),
        ("{app}_broken:processor", "No module named 'a_module_that_is_not_there'"),
        ("{app}_odd:processor", "Cannot import {app}_odd: invalid syntax"),
        ("{app}_failing:processor", r"Cannot import {app}_failing: KeyError: 'key' \(.*{app}_failing.py, line 2\)"),
        (
            "{app}:handle",
            r"function with the arguments \(event, partition\), probably a handler; .* Did you mean {app}:processor\?",
        ),
        ("{app}:make_async", "must be a plain `def`"),
        ("{app}:procesor", r"has no 'procesor'. Did you mean {app}:processor\?"),
        ("{app}.py:processor", r"name the module as in an import: {app}:processor\."),
        ("./src/{app}.py:processor", r"name the module as in an import: src.{app}:processor\."),
    ],
)
def test_a_target_that_cannot_be_loaded_is_reported(app: str, target: str, message: str) -> None:
    with pytest.raises(Misconfigured, match=message.format(app=app)):
        load(target.format(app=app))


def test_several_workers_cannot_share_what_is_in_memory() -> None:
    processor = Processor("hub:homes", "memory:", "alerts")
    check_id(processor, 1)
    with pytest.raises(Misconfigured, match="Use a store that they can share"):
        check_id(processor, 2)


def test_several_workers_cannot_share_an_id() -> None:
    processor = Processor("hub:homes", "sqlite:leases", "alerts", instance_id="one")
    check_id(processor, 1)
    with pytest.raises(Misconfigured, match="3 workers cannot share instance_id='one'"):
        check_id(processor, 3)
    feed = ChangeFeedProcessor("container:orders", "sqlite:leases", "mails", instance_name="one")
    with pytest.raises(Misconfigured, match=r"cannot share instance_name='one'\. Leave instance_name out"):
        check_id(feed, 3)
