"""Event Hubs' dialect of AMQP over the embedded hub: a local Event Hubs for official clients.

`evenflow hub serve` and `evenflow.testing.event_hub` run it. From a client's bytes to the hub and back:

    socket or WebSocket -> Connection -> Session -> intake -> envelopes -> PartitionWriter (the hub's own)
         (listener.py)         frames, SASL  windows    credit    a message as an event

    PartitionLog -> feed -> outlet -> Session -> Connection -> socket, one write for many transfers
    (on a thread)   rows    message   window

- *A message lives in the hub as an event with its wire form beside it.* Body, key and properties are the event's own,
  so that a processor on the hub decodes nothing else. What came before the body (properties and application
  properties, to the bit) is kept encoded in the row, after the fields that `Event` knows, where its decoder skips it.
  The body is stored once; only a body that is not one data section is stored as it came as well. Serving joins bytes:
  the annotations that say where and when, then what came, then the body.
- *A head is parsed once.* Senders repeat themselves: what comes before the body is the cache's key (`messages.py`).
- *The engine does no input or output.* A `Connection` is fed bytes and writes to a `Wire`. So sockets, TLS and
  WebSockets are one thing, and a port distinguishes AMQP from HTTP by the first bytes.
- *Everything that is kept for a client is bounded:* frames by what was agreed, partial deliveries and answers without
  credit by `KEPT_BYTES_MAX` for all links together, what waits to be stored or taken by `PENDING_BYTES_MAX` (then
  nothing more is read from the client), events by the transport's high-water mark, whatever the credit. Of an attach,
  only what its answer needs is kept, and only until then. `limits.py` counts what all clients have here together, with
  the number of sessions and links. Above the limit, nothing more is read from clients that have something here, and
  what would have to wait for a client is refused. Values are decoded within the bytes that are there, and 32 levels
  deep.
- *All fields of performatives are written*, since some clients count them. All deliveries have one tag, since they are
  settled and some clients collect tags.
- *Epochs are judged among connected receivers*, as the service does; nothing is remembered of those that left. So a
  hub has one server: two would each let an owner in. A lock of the operating system ensures it (`folder.py`).
- *What is written in another way leaves as clients understand it:* sections that are named, or numbered at length, are
  shortened when they arrive, and nulls are left out. Everything else is served to the bit.
"""
