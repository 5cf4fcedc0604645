"""Azure Event Hubs as a source.

- The official client is driven directly (`client.py`). Its own loop sleeps 50 ms after every round, and a task, two
  timers and two `EventData` per event are not needed. It is cancelled more than once: Python 3.11's `wait_for` forgets
  a cancellation when a frame arrives at that moment.
- No read reports an empty log while events are owed (`reader.py`): a link that is slow, or being opened again, is not
  the end of the log, and `until="caught_up"` relies on it.
- A gap is examined before anything behind it is delivered. The service skips what retention removed without saying so,
  but a compacted hub has gaps that are no loss. Only the partition's oldest event distinguishes them, and only when it
  is read after the gap was seen.
- What the official client cannot decode goes through our own AMQP codec (`decode.py`), also a message that came out
  without a body: the official decoder does not check sizes, and may take what follows for something else.
- A reader whose link was stolen waits before it tries again. Between instances a stolen link ends the reader; but a
  receiver from outside is no member in the store, and taking the lease again would go round and round.
"""
