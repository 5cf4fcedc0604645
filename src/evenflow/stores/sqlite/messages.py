"""What an instance and its writer process say to each other about a transaction, and how it travels.

Every request has a number, and one answer that names it. An error is rebuilt on the other side: ours from its name and
message; SQLite's own, which the application knows, with its codes.
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


class Begin(Struct, frozen=True, tag="begin", array_like=True):
    number: int
    group: Group
    checkpoint: Checkpoint
    committed: int
    start: int
    limit_s: float
    left_s: float
    """Of the limit, after the wait for the transactions before this one."""
    at: float


class Execute(Struct, frozen=True, tag="execute", array_like=True):
    number: int
    statement: str
    rows: list[Row]
    many: bool = False


class Commit(Struct, frozen=True, tag="commit", array_like=True):
    number: int


class RollBack(Struct, frozen=True, tag="roll back", array_like=True):
    number: int


Request: TypeAlias = Begin | Execute | Commit | RollBack


class Fault(Struct, frozen=True, array_like=True):
    """An error, to be raised where the request came from."""

    family: str
    """evenflow, apsw or builtins."""
    name: str
    text: str
    codes: dict[str, int] = {}


class Answer(Struct, frozen=True, array_like=True):
    number: int
    rows: list[Row] = []
    fault: Fault | None = None


_encode = msgpack.Encoder().encode
decode_request = msgpack.Decoder(Request).decode
decode_answer = msgpack.Decoder(Answer).decode


def framed(message: Request | Answer) -> bytes:
    body = _encode(message)
    if len(body) > MESSAGE_BYTES_MAX:
        raise ValueError(f"{len(body):,} bytes are too many for one statement of a transaction")
    return len(body).to_bytes(HEAD_BYTES, "big") + body


class Frames:
    """Bytes as they arrive, and the messages that are complete."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def __len__(self) -> int:
        """In bytes, of what was not taken yet."""
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
    """The values as they travel. TypeError for what is no value of SQLite's, as SQLite's own binding says."""
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
        f"The transaction was not over after {limit_s:.1f} s, and was rolled back: nothing of it took effect."
        " Others wait for it, and a lease does not last longer: do what takes long before the block begins, and"
        " give it fewer events (batch_events)."
    )


def fault_of(error: BaseException) -> Fault:
    name, text = type(error).__name__, str(error)
    if isinstance(error, EvenflowError):
        return Fault("evenflow", name, text)
    if isinstance(error, apsw.Error):
        codes: dict[str, Any] = {code: getattr(error, code, None) for code in _CODES}
        return Fault("apsw", name, text, {code: value for code, value in codes.items() if isinstance(value, int)})
    return Fault("builtins", name, text)


def error_of(fault: Fault) -> Exception:
    families: dict[str, Any] = {"evenflow": errors, "apsw": apsw, "builtins": builtins}
    kind = getattr(families[fault.family], fault.name, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return StoreUnavailable(f"The writer process failed: {fault.name}: {fault.text}")
    error: Exception = kind(fault.text)
    for code, value in fault.codes.items():
        setattr(error, code, value)
    return error
