"""Mutants that change no behaviour, each with the reason: nothing can notice them, and they count for nothing."""

from __future__ import annotations

EQUIVALENT: dict[str, str] = {
    "runtime.coordinator.Coordinator._handoff: seek and hold.seek is not None -> hold.seek is not None": (
        "A hold has a seek only while its reason is 'seek': Coordinator.seek sets both, in a hold that has not stopped,"
        " the first reason stays, and a pause that changes it drops the seek."
    ),
    "runtime.coordinator.Coordinator._passed: hold.reason != 'seek' or seek is None -> seek is None": (
        "As above: a hold that still has its seek has the reason 'seek'."
    ),
    "runtime.failures.Failures._is_too_much: ordinal - breaker.events < one < ordinal ->"
    " ordinal - breaker.events <= one < ordinal": (
        "Breaker.trips counts only those above `ordinal - events`, so that one more at that very place is not counted,"
        " and the next event drops it from the list."
    ),
    "runtime.processor.Processor.serve: until == 'caught_up' and (not ends[-1].cancelled()) -> not"
    " ends[-1].cancelled()": (
        "Without until='caught_up' the last of the ends waits for an asyncio.Event, which raises nothing; its result is"
        " not used."
    ),
    "core.decide._owner_now: partition in now.held or lease.owner.id == now.me.id -> lease.owner.id == now.me.id": (
        "What is held has a lease that names me, or the coordinator would have ended the hold when it took"
        " the heartbeat in;"
        " but for one that is being passed on, whose plan the coordinator does not carry out."
    ),
}
