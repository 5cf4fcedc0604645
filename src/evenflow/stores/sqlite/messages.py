"""The messages between an instance and its writer process, and their encoding.

Every request has a number, and one answer with the same number. Errors are rebuilt on the other side: evenflow's from
their name and message, SQLite's also with their codes.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, TypeAlias

import apsw
from msgspec import Struct, msgpack

from evenflow import errors
from evenflow.errors import EvenflowError, StoreUnavailable, TransactionTimeout
from evenflow.model import Checkpoint, Group  # noqa: TC001

if TYPE_CHECKING:
    from collections.abc import Iterator

Value: TypeAlias = bool | int | float | str | bytes | None
Row: TypeAlias = tuple[Any, ...]

HEAD_BYTES = 4
CHUNK_BYTES = 1 << 14
MESSAGE_BYTES_MAX = (1 << 32) - 1

_PLAIN = {type(None), bool, int, float, str, bytes}
_CODES = "result", "extendedresult", "error_offset"


class BeginTransaction(Struct, frozen=True, tag="begin", array_like=True):
    number: int
    group: Group
    checkpoint: Checkpoint
    committed: int
    start: int
    limit_s: float
    left_s: float
    """What is left of the limit after waiting for earlier transactions."""
    at: float


class ExecuteStatement(Struct, frozen=True, tag="execute", array_like=True):
    number: int
    statement: str
    rows: list[Row]
    many: bool = False


class CommitTransaction(Struct, frozen=True, tag="commit", array_like=True):
    number: int


class RollBackTransaction(Struct, frozen=True, tag="roll back", array_like=True):
    number: int


WriterRequest: TypeAlias = BeginTransaction | ExecuteStatement | CommitTransaction | RollBackTransaction


class RemoteError(Struct, frozen=True, array_like=True):
    """An error to raise on the requesting side."""

    family: str
    """evenflow, apsw or builtins."""
    name: str
    text: str
    codes: dict[str, int] = {}


class WriterAnswer(Struct, frozen=True, array_like=True):
    number: int
    rows: list[Row] = []
    fault: RemoteError | None = None


_encode = msgpack.Encoder().encode
decode_request = msgpack.Decoder(WriterRequest).decode
decode_answer = msgpack.Decoder(WriterAnswer).decode


def framed(message: WriterRequest | WriterAnswer) -> bytes:
    body = _encode(message)
    if len(body) > MESSAGE_BYTES_MAX:
        raise ValueError(f"A statement of {len(body):,} bytes is too large; the maximum is {MESSAGE_BYTES_MAX:,}")
    return len(body).to_bytes(HEAD_BYTES, "big") + body


class FrameBuffer:
    """Collects received bytes and returns complete messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        """Buffered bytes."""
        return len(self._bytes)

    def feed(self, data: bytes) -> None:
        self._bytes += data

    def bodies(self) -> Iterator[bytes]:
        while (body := self.body()) is not None:
            yield body

    def body(self) -> bytes | None:
        if len(self._bytes) < HEAD_BYTES:
            return None
        end = HEAD_BYTES + int.from_bytes(self._bytes[:HEAD_BYTES], "big")
        if len(self._bytes) < end:
            return None
        body = bytes(self._bytes[HEAD_BYTES:end])
        del self._bytes[:end]
        return body


def plain_row(values: tuple[object, ...]) -> Row:
    """The values in their plain types. Raises the same TypeError as SQLite's binding for unsupported types."""
    if all(type(value) in _PLAIN for value in values):
        return values
    return tuple(_plain(value, number) for number, value in enumerate(values, start=1))


def _plain(value: object, number: int) -> Value:
    match value:
        case None | bool():
            return value
        case int():
            return int(value)
        case float():
            return float(value)
        case str():
            return str(value)
        case bytes() | bytearray() | memoryview():
            return bytes(value)
    raise TypeError(f"Bad binding argument type supplied - argument #{number}: type {type(value).__name__}")


def timed_out(limit_s: float) -> TransactionTimeout:
    return TransactionTimeout(
        f"The transaction did not finish within {limit_s:.1f} s and was rolled back; nothing took effect. Do slow work"
        " before the block begins, or process fewer events in one transaction (batch_events)."
    )


def fault_of(error: BaseException) -> RemoteError:
    name, text = type(error).__name__, str(error)
    if isinstance(error, EvenflowError):
        return RemoteError("evenflow", name, text)
    if isinstance(error, apsw.Error):
        codes: dict[str, Any] = {code: getattr(error, code, None) for code in _CODES}
        return RemoteError("apsw", name, text, {code: value for code, value in codes.items() if isinstance(value, int)})
    return RemoteError("builtins", name, text)


def error_of(fault: RemoteError) -> Exception:
    families: dict[str, Any] = {"evenflow": errors, "apsw": apsw, "builtins": builtins}
    kind = getattr(families[fault.family], fault.name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return StoreUnavailable(f"The writer process failed: {fault.name}: {fault.text}")
    error: Exception = kind(fault.text)
    for code, value in fault.codes.items():
        setattr(error, code, value)
    return error
