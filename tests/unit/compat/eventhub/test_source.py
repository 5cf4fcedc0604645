"""Which owner level receivers have, and credentials that block."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from azure.core.credentials import AccessToken

from evenflow.compat.eventhub.options import ReceiveOptions
from evenflow.compat.eventhub.source import ReceivingSource, ThreadedCredential

ACCESS: dict[str, Any] = {
    "connection_string": "Endpoint=sb://host/;SharedAccessKeyName=k;SharedAccessKey=v;EntityPath=homes"
}


@pytest.mark.parametrize(
    ("asked", "shares", "alone", "epoch", "level"),
    [
        (None, False, False, 3, None),  # as many as like to
        (None, True, False, 3, 3),
        (None, True, False, 0, 0),  # with third-party processors
        (10, True, False, 3, 13),
        (10, False, False, 3, 13),
        (None, False, True, 3, None),
        (None, True, True, 3, 0),
        (10, True, True, 3, 10),
        (0, False, True, 3, 0),
    ],
)
def test_the_owner_level(asked: int | None, shares: bool, alone: bool, epoch: int, level: int | None) -> None:
    options = ReceiveOptions(handler=print, batch=False, owner_level=asked, partition_id="0" if alone else None)
    source = ReceivingSource(options, "alerts", shares=shares, **ACCESS)
    assert source.of_group("alerts").owner_level(epoch) == level


def test_a_credential_that_blocks_does_so_on_a_thread() -> None:
    class Blocking:
        token_type = b"jwt"

        def get_token(self, *scopes: str, **options: Any) -> AccessToken:
            assert threading.current_thread() is not threading.main_thread()
            return AccessToken(scopes[0], 7)

    credential = ThreadedCredential(Blocking())
    assert credential.token_type == b"jwt"
    assert asyncio.run(credential.get_token("scope")).token == "scope"
    assert not hasattr(ThreadedCredential(object()), "token_type")
