"""The ids of changed documents."""

from __future__ import annotations

import pytest

from evenflow.sources.documents import document_id


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b'{"id":"o-7","current":{"id":"o-8"}}', "o-7"),
        (b'{"current":{"id":"o-7"},"metadata":{"lsn":1}}', "o-7"),
        (b'{"current":{},"previous":{"id":"o-7"},"metadata":{"lsn":1}}', "o-7"),
        (b'{"current":{},"metadata":{"lsn":1,"id":"o-7"}}', "o-7"),
        (b'{"id":7,"current":null}', ""),
        (b"[1]", ""),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_the_id_is_found_in_either_mode(body: bytes, name: str) -> None:
    assert document_id(body) == name
