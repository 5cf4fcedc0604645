"""Credit, windows, frames and answers on the wire: what official clients rely on and seldom show."""

from __future__ import annotations

import asyncio
import shutil
import socket
import time
from typing import TYPE_CHECKING, Any

import pytest

from evenflow.amqp import types
from evenflow.amqp.frames import framed
from evenflow.amqp.performatives import ATTACH, BEGIN, CLOSE, DETACH, DISPOSITION, END, FLOW, OPEN, TRANSFER
from evenflow.amqp.sections import APPLICATION_PROPERTIES, DATA, PROPERTIES, VALUE, data, sections, value_of
from evenflow.amqp.types import NULL, described, list_, map_, string, symbol, uint
from evenflow.emulators.eventhubs import connection, limits
from evenflow.emulators.eventhubs.messages import BATCH_FORMAT
from evenflow.testing import event_hub
from tests.integration.amqp_peer import Peer, condition_of, selector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from evenflow.testing import EventHub

RECEIVE = "hub/ConsumerGroups/$Default/Partitions/{}"


@pytest.fixture
def hub() -> Iterator[EventHub]:
    with event_hub(4) as found:
        yield found


@pytest.fixture
def peer(hub: EventHub) -> Iterator[Peer]:
    with Peer(hub.port) as found:
        found.open()
        found.begin()
        yield found


def send(hub: EventHub, partition: int, *bodies: bytes) -> int:
    """The sequence of the first."""
    return asyncio.run(hub.hub.send(list(bodies), partition=partition))[0].first


def receiver(peer: Peer, partition: int, first: int, handle: int = 0) -> Any:
    where = selector(f"amqp.annotation.x-opt-sequence-number >= '{first}'")
    peer.attach_receiver(RECEIVE.format(partition), handle, where)
    return peer.hear_of(ATTACH)


def transfers(peer: Peer, count: int) -> list[tuple[list[Any], bytes]]:
    found: list[tuple[list[Any], bytes]] = []
    while len(found) < count:
        code, fields, payload = peer.hear()
        if code == TRANSFER:
            found.append((fields, payload))
    return found


def nothing_comes(peer: Peer, taken: int = 0, window: int = 5_000) -> bool:
    """Asked for an echo, the server has nothing to say before it."""
    peer.say(FLOW, uint(taken), uint(window), uint(0), uint(5_000), NULL, NULL, NULL, NULL, NULL, types.TRUE)
    code, _, _ = peer.hear()
    return code == FLOW


def body(payload: bytes) -> bytes:
    found: bytes = next(value_of(payload, section) for section in sections(payload) if section.code == DATA)
    return found


def test_performatives_may_be_named_in_place_of_numbered(hub: EventHub) -> None:
    with Peer(hub.port) as peer:
        peer.greet()
        peer.send(framed(0, b"\x00" + symbol("amqp:open:list") + list_([string("peer")])))
        peer.hear_of(OPEN)
        begin = [NULL, uint(0), uint(10), uint(10)]
        peer.send(framed(1, b"\x00" + symbol("amqp:begin:list") + list_(begin)))
        peer.hear_of(BEGIN)
        peer.send(framed(1, b"\x00" + symbol("amqp:nonsense:list") + list_([])))
        assert condition_of(peer.hear_of(CLOSE)[0]) == "amqp:not-implemented"


def test_no_more_than_the_credit_is_given(hub: EventHub, peer: Peer) -> None:
    first = send(hub, 0, *[b"%d" % n for n in range(10)])
    receiver(peer, 0, first)
    peer.credit(3)
    assert [body(payload) for _, payload in transfers(peer, 3)] == [b"0", b"1", b"2"]
    assert nothing_comes(peer)
    peer.credit(2, counted=3)
    found = transfers(peer, 2)
    assert [body(payload) for _, payload in found] == [b"3", b"4"]
    assert nothing_comes(peer)
    fields, _ = found[0]
    assert len(fields) == 11, "clients count the fields"
    assert (fields[1], fields[4], fields[5]) == (3, True, False), "delivery id, settled, more"


def test_a_drain_uses_the_credit_up(hub: EventHub, peer: Peer) -> None:
    first = send(hub, 0, b"a", b"b")
    receiver(peer, 0, first)
    peer.credit(100, drain=True)
    transfers(peer, 2)
    fields = peer.hear_of(FLOW)
    assert (fields[4], fields[5], fields[6], fields[8]) == (0, 100, 0, True), "handle, delivery count, credit, drain"
    send(hub, 0, b"c")
    assert nothing_comes(peer)
    peer.credit(1, counted=100)
    assert body(transfers(peer, 1)[0][1]) == b"c"


def test_the_sessions_window_is_kept(hub: EventHub) -> None:
    first = send(hub, 1, *[b"x"] * 5)
    with Peer(hub.port) as peer:
        peer.open()
        peer.begin(window=2)
        receiver(peer, 1, first)
        peer.credit(100, window=2)
        transfers(peer, 2)
        assert nothing_comes(peer, taken=2, window=0)
        peer.say(FLOW, uint(2), uint(3), uint(0), uint(5_000))
        transfers(peer, 3)


def test_a_message_is_cut_into_frames_that_the_client_takes(hub: EventHub) -> None:
    text = bytes(range(256)) * 20
    first = send(hub, 1, text)
    with Peer(hub.port) as peer:
        peer.open(frame_bytes=512)
        peer.begin()
        receiver(peer, 1, first)
        peer.credit(1)
        payload, more = b"", True
        while more:
            ((fields, piece),) = transfers(peer, 1)
            payload, more = payload + piece, fields[5]
            assert len(piece) <= 512
        assert body(payload) == text


def test_deliveries_of_two_links_may_be_mixed_frame_by_frame(hub: EventHub, peer: Peer) -> None:
    for handle in (0, 1):
        peer.attach_sender("hub/Partitions/2", handle)
        peer.hear_of(FLOW)
    messages = [data(bytes((65 + handle,)) * 1_000) for handle in (0, 1)]
    before = hub.hub.info().partitions[2].count
    for at in range(0, 1_000, 300):
        for handle in (0, 1):
            more = at + 300 < len(messages[handle])
            peer.transfer(messages[handle][at : at + 300], handle, handle, more=more)
    assert {peer.hear_of(DISPOSITION)[1], peer.hear_of(DISPOSITION)[1]} == {0, 1}
    assert hub.hub.info().partitions[2].count == before + 2


def test_a_delivery_that_is_aborted_is_nothing(hub: EventHub, peer: Peer) -> None:
    peer.attach_sender("hub/Partitions/2")
    peer.hear_of(FLOW)
    before = hub.hub.info().partitions[2].count
    peer.transfer(data(b"never")[:4], 0, more=True)
    peer.say(TRANSFER, uint(0), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, types.TRUE)
    peer.transfer(data(b"ever"), 1)
    assert peer.hear_of(DISPOSITION)[1] == 1
    assert hub.hub.info().partitions[2].count == before + 1


def test_an_empty_batch_is_accepted(peer: Peer) -> None:
    peer.attach_sender("hub")
    peer.hear_of(FLOW)
    peer.transfer(b"", message_format=BATCH_FORMAT)
    assert peer.hear_of(DISPOSITION)[4].descriptor == 0x24


def test_credit_is_given_again_while_a_client_sends_on(peer: Peer) -> None:
    peer.attach_sender("hub/Partitions/3")
    credit = peer.hear_of(FLOW)[6]
    for number in range(2 * credit):
        if number >= credit // 2:
            peer.hear_of(DISPOSITION)
        peer.transfer(data(b"x"), number)
    for _ in range(credit // 2):
        peer.hear_of(DISPOSITION)


def test_who_waits_at_the_end_gets_what_comes(hub: EventHub, peer: Peer) -> None:
    peer.attach_receiver(RECEIVE.format(3), 0, selector("amqp.annotation.x-opt-offset > '@latest'"))
    peer.hear_of(ATTACH)
    peer.credit(10)
    assert nothing_comes(peer)
    send(hub, 3, b"news")
    assert body(transfers(peer, 1)[0][1]) == b"news"


def test_a_handle_may_be_used_again_after_a_detach(hub: EventHub, peer: Peer) -> None:
    first = send(hub, 0, b"x")
    for _ in range(7):
        receiver(peer, 0, first)
        peer.credit(1)
        transfers(peer, 1)
        peer.say(DETACH, uint(0), types.TRUE)
        assert peer.hear_of(DETACH)[1] is True


def test_end_and_close_are_answered(peer: Peer) -> None:
    peer.say(END)
    assert peer.hear_of(END) == [None]
    # Late words about a session that has ended mean nothing.
    peer.say(DETACH, uint(0), types.TRUE)
    peer.begin()
    peer.say(CLOSE, channel=0)
    assert peer.ends() == [(CLOSE, [None])]


def test_what_retention_has_removed_is_passed_over() -> None:
    with event_hub(1) as hub, Peer(hub.port) as peer:
        for n in range(5):
            send(hub, 0, b"%d" % n)
        hub.hub.opened().log(0).remove_before(3)
        peer.open()
        peer.begin()
        receiver(peer, 0, 1)
        peer.credit(1)
        assert body(transfers(peer, 1)[0][1]) == b"3"


def test_a_hub_that_is_deleted_under_its_receivers_ends_their_links() -> None:
    with event_hub(1) as hub, Peer(hub.port) as peer:
        peer.open()
        peer.begin()
        receiver(peer, 0, 0)
        peer.credit(1)
        shutil.rmtree(hub.hub.path)
        assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:link:detach-forced"
        for handle, attach in enumerate((peer.attach_receiver, peer.attach_sender), 1):
            attach("hub/ConsumerGroups/$Default/Partitions/0" if handle == 1 else "hub/Partitions/0", handle)
            assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:internal-error"


def question(**facts: str) -> bytes:
    properties = [types.string("q-1"), NULL, NULL, NULL, string("my-answers")]
    asked = map_((string(name), string(value)) for name, value in facts.items())
    return described(PROPERTIES, list_(properties)) + described(APPLICATION_PROPERTIES, asked) + described(VALUE, NULL)


@pytest.mark.parametrize(
    ("facts", "status"),
    [
        ({"operation": "READ", "type": "com.microsoft:eventhub", "name": "hub"}, 200),
        ({"operation": "READ", "type": "com.microsoft:eventhub", "name": "HUB"}, 200),
        ({"operation": "READ", "type": "com.microsoft:partition", "name": "hub", "partition": "1"}, 200),
        ({"operation": "READ", "type": "com.microsoft:partition", "name": "hub", "partition": "9"}, 400),
        ({"operation": "READ", "type": "com.microsoft:partition", "name": "hub"}, 400),
        ({"operation": "READ", "type": "com.microsoft:eventhub", "name": "nothing"}, 404),
        ({"operation": "READ", "type": "com.microsoft:queue", "name": "hub"}, 400),
        ({"operation": "DELETE", "type": "com.microsoft:eventhub", "name": "hub"}, 400),
        ({}, 400),
    ],
)
def test_every_question_has_an_answer_where_it_was_asked_for(peer: Peer, facts: dict[str, str], status: int) -> None:
    source = described(0x28, list_([string("$management")]))
    target = described(0x29, list_([string("my-answers")]))
    peer.say(ATTACH, string("answers"), uint(4), types.TRUE, NULL, NULL, source, target)
    peer.hear_of(ATTACH)
    peer.attach_sender("$management", 3)
    peer.hear_of(FLOW)
    peer.transfer(question(**facts), 0, 3)
    peer.credit(1, 4)
    ((fields, payload),) = transfers(peer, 1)
    assert fields[0] == 4
    found = {section.code: value_of(payload, section) for section in sections(payload)}
    assert found[PROPERTIES][5] == "q-1"
    assert found[APPLICATION_PROPERTIES]["status-code"] == status


def test_a_question_that_is_none_is_rejected(peer: Peer) -> None:
    peer.attach_sender("$management", 3)
    peer.hear_of(FLOW)
    peer.transfer(b"garbage", 0, 3)
    assert peer.hear_of(DISPOSITION)[4].descriptor == 0x25


def test_a_sixth_receiver_without_epoch_is_one_too_many(hub: EventHub, peer: Peer) -> None:
    for handle in range(5):
        assert receiver(peer, 2, 0, handle)[5] is not None
    receiver(peer, 2, 0, 5)
    assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:resource-limit-exceeded"


def test_what_all_clients_have_here_together_is_bounded(hub: EventHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection exceeds its own limit; the last one gets the error. A completed delivery frees memory again."""
    monkeypatch.setattr(limits, "BYTES_MAX", 1_050_000)
    peers = [Peer(hub.port) for _ in range(4)]
    try:
        for peer in peers:
            peer.open()
            peer.begin()
            peer.attach_sender("hub/Partitions/3")
            peer.hear_of(FLOW)
        for peer in peers[:3]:
            for _ in range(6):
                peer.transfer(b"x" * 60_000, more=True)
            peer.transfer(b"", more=True)
            assert nothing_comes(peer)
        peers[3].transfer(b"x" * 60_000, more=True)
        assert condition_of(peers[3].hear_of(END)[0]) == "amqp:resource-limit-exceeded"
        peers[0].say(DETACH, uint(0), types.TRUE)
        peers[0].hear_of(DETACH)
        peers[1].transfer(b"x" * 60_000, more=True)
        assert nothing_comes(peers[1])
    finally:
        for peer in peers:
            peer.socket.close()


@pytest.mark.parametrize("what", ["links", "sessions"])
def test_links_and_sessions_are_counted(hub: EventHub, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    with Peer(hub.port) as peer:
        peer.open()
        peer.begin()
        monkeypatch.setattr(limits, f"{what.upper()}_MAX", 3)
        if what == "links":
            for handle in range(4):
                peer.attach_sender("hub", handle)
            assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:resource-limit-exceeded"
            peer.say(DETACH, uint(0), types.TRUE)
            peer.hear_of(DETACH)
            peer.attach_sender("hub", 4)
            assert peer.hear_of(ATTACH)[1] == 4
        else:
            for channel in range(2, 5):
                peer.say(BEGIN, NULL, uint(0), uint(1), uint(1), channel=channel)
            assert condition_of(peer.hear_of(CLOSE)[0]) == "amqp:resource-limit-exceeded"


def test_responses_that_the_client_does_not_read_are_bounded(hub: EventHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "KEPT_BYTES_MAX", 2_000)
    with Peer(hub.port) as peer:
        peer.open()
        peer.begin()
        peer.attach_sender("$management", 0)
        peer.attach_receiver("$management", 1)
        peer.hear_of(ATTACH)
        question = described(APPLICATION_PROPERTIES, map_([(string("operation"), string("nothing"))]))
        for number in range(20):
            peer.transfer(question, number)
        assert condition_of(peer.hear_of(DETACH)[2]) == "amqp:resource-limit-exceeded"


@pytest.mark.parametrize("most", [0, limits.BYTES_MAX])
def test_when_all_have_gone_nothing_is_counted_any_more(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """Also after errors. While the server is at its limit, clients only wait."""
    made: list[Counted] = []

    class Counted(limits.ServerLimits):
        most_bytes = 0

        def __init__(self) -> None:
            super().__init__()
            made.append(self)

        def __setattr__(self, name: str, value: int) -> None:
            super().__setattr__(name, value)
            if name == "held_bytes":
                self.__dict__["most_bytes"] = max(self.most_bytes, value)

    paused: list[connection.AmqpConnection] = []
    pause_writing = connection.AmqpConnection.pause_writing

    def pause(one: connection.AmqpConnection) -> None:
        pause_writing(one)
        paused.append(one)

    monkeypatch.setattr(connection.AmqpConnection, "pause_writing", pause)
    monkeypatch.setattr("evenflow.emulators.eventhubs.service.ServerLimits", Counted)
    monkeypatch.setattr(limits, "BYTES_MAX", most)
    with event_hub(1) as hub:
        peers = [Peer(hub.port) for _ in range(4)]
        for peer in peers:
            peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
            peer.open()
            peer.begin(window=100_000)
        sender, reader, late, never = peers
        sender.attach_sender("hub/Partitions/0")
        sender.hear_of(FLOW)
        for number in range(200):
            sender.transfer(data(b"%d" % number + b"." * 60_000), number)
        assert [sender.hear_of(DISPOSITION)[1] for _ in range(200)] == list(range(200))
        assert most or made[0].most_bytes < 600_000
        receiver(reader, 0, 0)
        reader.credit(60, window=100_000)
        assert len(transfers(reader, 60)) == 60
        paused.clear()
        for peer in (late, never):  # they do not read what comes
            receiver(peer, 0, 0)
            peer.credit(1_000, window=100_000)
        _until(lambda: len(set(paused)) == 2)
        came = [body(payload).rstrip(b".") for _, payload in transfers(late, 150)]
        assert came == [b"%d" % number for number in range(150)], (
            "what it waits for is not kept, and comes all the same"
        )
        sender.transfer(b"x" * 50, 200, more=True)
        for peer in peers:
            peer.socket.close()
        _until(lambda: (made[0].held_bytes, made[0].links, made[0].sessions) == (0, 0, 0))


def _until(look: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20.0
    while not look():
        assert time.monotonic() < deadline_s, "the condition did not become true"
        time.sleep(0.01)
