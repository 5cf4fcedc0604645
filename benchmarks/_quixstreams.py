"""The same by quixstreams, with an update that does nothing. It runs in an environment of its own: it needs another
version of confluent-kafka than evenflow does.

    .venv-quixstreams/bin/python benchmarks/_quixstreams.py '{"servers": ..., "topic": ..., "events": ...}'
"""

from __future__ import annotations

import json
import sys
import tempfile
from time import perf_counter

from quixstreams import Application  # type: ignore[import-not-found]

options = json.loads(sys.argv[1])
started_s: float | None = None


def nothing(value: object) -> None:
    global started_s
    if started_s is None:
        started_s = perf_counter()


with tempfile.TemporaryDirectory() as folder:
    application = Application(
        options["servers"],
        consumer_group=options["group"],
        auto_offset_reset="earliest",
        auto_create_topics=False,
        commit_interval=1.0,
        state_dir=folder,
        loglevel="ERROR",
        consumer_extra_config=options["config"],
    )
    frame = application.dataframe(application.topic(options["topic"], value_deserializer="bytes"))
    frame.update(nothing)
    application.run(count=options["events"], collect=False)
    assert started_s is not None
    print(options["events"] / (perf_counter() - started_s))
