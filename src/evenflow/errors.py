"""Every error that evenflow raises, in one tree, by what the caller should do.

    EvenflowError
    ├── Transient                 try again; it may work the next time
    │   ├── StoreUnavailable      the store does not answer, or is locked
    │   ├── SourceUnavailable     the source does not answer
    │   ├── DeadLettersUnavailable    the target of dead letters does not answer
    │   └── StorageFull           the disk is full; nothing that was acknowledged is lost
    ├── SendFailed                a send did not reach all its partitions: `hub.send(error.batch)` sends the rest, and
    │                             nothing twice. It is of the kind of what made it fail as well, e.g. `StorageFull`
    ├── BatchForgotten            a batch was sent again too late: the log no longer keeps whether it is stored
    ├── LeaseLost                 stop this partition; somebody else owns it, or soon will
    ├── AlreadyDone               an earlier try of this transaction took effect; its events are handled
    ├── TransactionTimeout        a transaction was open for too long, and was rolled back: nothing of it took effect
    ├── HandlerTimeout            an async handler ran for longer than handler_timeout_s and was cancelled
    ├── PartitionHalted           a partition is stopped by a poison event, or tripped; the message says which and why.
    │                             Raised by a handler: it wants to be stopped, and blames no event
    ├── Superseded                this process is over: a newer one runs under the same instance id
    ├── Misconfigured             fail now; the message says what to change
    │   ├── UnknownScheme         a URL names a store, source or target that there is none of
    │   ├── NotAHub               the path holds no hub
    │   ├── HubExists             the path holds a hub already
    │   ├── HubReplaced           the hub was deleted and made again; old checkpoints do not fit it
    │   ├── NoSuchPartition       the source has no such `partition`, and had none: somebody made its lease by hand
    │   ├── NotAContainer         the path holds no container
    │   ├── ContainerExists       the path holds a container already
    │   └── Unsupported           a query asks for more than the embedded container can do; the message says for what
    ├── DocumentRefused           a document is not as the caller took it to be; look at it again
    │   ├── DocumentMissing       there is none with this id and partition key
    │   ├── DocumentExists        there is one with this id and partition key already
    │   └── DocumentChanged       it has another ETag than was asked for
    ├── RangeGone                 a range of a container was split or merged; `children` are those that go on
    ├── PositionOutOfRange        a position before the oldest or after the newest event
    │   └── PositionGone          retention has removed what comes after this position
    └── Corrupt                   a file is damaged; the message names it

An error's default message is the first line of its docstring. Attributes carry the facts; nobody parses messages.
"""

from __future__ import annotations

import typing

if typing.TYPE_CHECKING:
    from collections.abc import Mapping


class EvenflowError(Exception):
    """Something went wrong in evenflow."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().split("\n")[0])


class Transient(EvenflowError):
    """This may work the next time."""

    retry_after_s: float = 0.0
    """How long the server asks to wait; 0: it does not say."""


class StoreUnavailable(Transient):
    """The store does not answer."""


class SourceUnavailable(Transient):
    """The source does not answer."""


class DeadLettersUnavailable(Transient):
    """The target of dead letters does not answer."""


class StorageFull(Transient):
    """The disk is full."""


class SendFailed(EvenflowError):
    """Not all partitions stored their events."""

    batch: typing.Any
    """All of it, to be sent again with `hub.send(error.batch)`: what is stored is not stored a second time."""
    stored: Mapping[str, typing.Any]
    """By partition: where its events are (`Sent`)."""
    not_stored: Mapping[str, BaseException]
    """By partition: why its events are not stored."""
    in_doubt: Mapping[str, BaseException]
    """By partition: what happened while its events were made durable; they may be stored."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message)
        self.batch = None
        self.stored, self.not_stored, self.in_doubt = {}, {}, {}


class BatchForgotten(EvenflowError):
    """The log no longer keeps whether this batch is stored."""


class LeaseLost(EvenflowError):
    """The lease of this partition is lost: somebody else owns it, or soon will."""

    def __init__(self, message: str = "", *, lowest_epoch: int | None = None) -> None:
        super().__init__(message)
        self.lowest_epoch = lowest_epoch
        """What a store refuses below it, because the group was deleted or writes were lost since; None: it was refused
        for another reason. No lease has this epoch: it is for those who write checkpoints without one."""


class AlreadyDone(EvenflowError):
    """An earlier try of this transaction took effect: its events are handled."""


class TransactionTimeout(EvenflowError):
    """The transaction was open for too long. It was rolled back: nothing of it took effect."""


class HandlerTimeout(EvenflowError):
    """An async handler ran for longer than handler_timeout_s, and was cancelled."""


class PartitionHalted(EvenflowError):
    """A partition is stopped by a poison event, or its breaker tripped."""


class Superseded(EvenflowError):
    """A newer process runs under the same instance id. Give each process one of its own, or leave it out."""


class Misconfigured(EvenflowError):
    """A setting is wrong."""


class UnknownScheme(Misconfigured):
    """There is no such kind of store, source or target of dead letters."""


class NotAHub(Misconfigured):
    """There is no hub at this path."""


class HubExists(Misconfigured):
    """There is a hub at this path already."""


class HubReplaced(Misconfigured):
    """The hub was deleted and made again: the group's checkpoints belong to the old one."""


class NoSuchPartition(Misconfigured):
    """The source has no such partition, and none that came from it."""

    partition: str = ""


class NotAContainer(Misconfigured):
    """There is no container at this path."""


class ContainerExists(Misconfigured):
    """There is a container at this path already."""


class Unsupported(Misconfigured):
    """The embedded container cannot do that."""


class DocumentRefused(EvenflowError):
    """The document is not as it was taken to be."""


class DocumentMissing(DocumentRefused):
    """There is no document with this id and partition key."""


class DocumentExists(DocumentRefused):
    """There is a document with this id and partition key already."""


class DocumentChanged(DocumentRefused):
    """The document has another ETag: somebody has changed it since."""


class RangeGone(EvenflowError):
    """The range was split or merged."""

    children: tuple[str, ...] = ()
    """The ranges that it lives on in."""


class PositionOutOfRange(EvenflowError):
    """The position is outside the log."""


class PositionGone(PositionOutOfRange):
    """Events after this position are no longer kept."""


class Corrupt(EvenflowError):
    """A file is damaged."""
