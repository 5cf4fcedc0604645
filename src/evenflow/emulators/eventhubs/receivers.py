"""The receivers of each partition and group: one with an epoch, or a few without. As in the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

from evenflow.amqp.conditions import LIMIT_EXCEEDED, STOLEN, AmqpError

if TYPE_CHECKING:
    from collections.abc import Hashable

    Key: TypeAlias = Hashable

WITHOUT_EPOCH_MAX = 5


class Receiver(Protocol):
    epoch: int | None
    receiver_name: str

    def detach(self, error: AmqpError | None = None) -> None: ...


class ReceiverRegistry:
    def __init__(self) -> None:
        self._attached: dict[Key, list[Receiver]] = {}

    def admit(self, key: Key, receiver: Receiver) -> None:
        """Register a receiver, which may disconnect others. Raises `AmqpError` if it is not allowed."""
        here = self._attached.setdefault(key, [])
        try:
            _check(here, receiver)
        finally:
            if not here:
                del self._attached[key]
        disconnected = here[:] if receiver.epoch is not None else []
        self._attached.setdefault(key, []).append(receiver)
        for one in disconnected:
            one.detach(
                AmqpError(
                    STOLEN,
                    f"New receiver '{receiver.receiver_name}' with higher epoch of '{receiver.epoch}' is created hence "
                    f"current receiver '{one.receiver_name}' with epoch '{one.epoch or 0}' is getting disconnected. "
                    "If you are recreating the receiver, make sure a higher epoch is used.",
                )
            )

    def leave(self, key: Key, receiver: Receiver) -> None:
        """Idempotent."""
        here = self._attached.get(key, [])
        if receiver in here:
            here.remove(receiver)
            if not here:
                self._attached.pop(key, None)


def _check(here: list[Receiver], receiver: Receiver) -> None:
    epochs = [one.epoch for one in here if one.epoch is not None]
    if receiver.epoch is None:
        if epochs:
            raise AmqpError(
                STOLEN,
                f"At least one receiver for the endpoint is created with epoch of '{max(epochs)}', and so non-epoch "
                "receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch receivers are "
                "closed or disconnected.",
            )
        if len(here) >= WITHOUT_EPOCH_MAX:
            raise AmqpError(
                LIMIT_EXCEEDED,
                "Exceeded the maximum number of allowed receivers per partition in a consumer group which is "
                f"{WITHOUT_EPOCH_MAX}. List of connected receivers - {', '.join(one.receiver_name for one in here)}.",
            )
    elif epochs and max(epochs) > receiver.epoch:
        raise AmqpError(
            STOLEN,
            f"Receiver 'nil' with a higher epoch '{max(epochs)}' already exists. Receiver '{receiver.receiver_name}' "
            f"with epoch {receiver.epoch} cannot be created. Make sure you are creating receiver with increasing epoch "
            "value to ensure connectivity, or ensure all old epoch receivers are closed or disconnected.",
        )
