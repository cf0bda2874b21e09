"""After the grant: giving a permit back, and extending its lease."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional, Union

from .core import Attempts, Core, Twice, ask, post
from .effects import Flow
from .errors import QuorateError
from .permit import NS, Permit, Permits, ns_down


@dataclass(frozen=True)
class Released:
    """What came of a release. True if the permit was given back by it."""

    released: bool
    #: Why nothing was given back.
    detail: Optional[str] = None

    def __bool__(self) -> bool:
        return self.released


@dataclass(frozen=True)
class Renewed:
    """A lease that begins anew."""

    #: How long a lease is, in seconds.
    lease: float
    #: Be done, or renew again, before this instant of `time.monotonic_ns()`. It counts from the first send.
    dead_at_ns: int


def release(core: Core, key: str, number: int, patience_ns: Optional[int] = None) -> Flow[Released]:
    """Gives a permit back: a slot that has not come yet, or a lease. Once, however often it is asked."""

    def read(answer: Mapping[str, Any], _attempts: Attempts) -> Released:
        if not isinstance(answer.get("released"), bool):
            raise ValueError("released is not a bool")
        return Released(answer["released"], answer.get("detail"))

    patience = int(core.options.timeout * NS) if patience_ns is None else patience_ns
    request = post("/release", {"key": key, "permit": number})
    told = yield from ask(core, request, Twice.REPEATABLE, read, patience_ns=patience)
    if not told.value and told.doubt is not None:
        detail = f"{told.value.detail} (perhaps by an attempt whose answer was lost: {told.doubt})"
        return Released(False, detail)
    if told.value and patience_ns is None:
        core.counters.count("released")
    return told.value


def release_all(core: Core, permits: Permits) -> Flow[Released]:
    """Gives back all permits of one decision."""
    kept = []
    for permit in permits:
        if permit.number is None:
            return Released(False, "the cluster did not grant it")
        told = yield from release(core, permit.key, permit.number)
        if not told:
            kept.append(f"{permit.key}: {told.detail}")
    return Released(not kept, "; ".join(kept) or None)


def give_back(core: Core, permit: Union[Permit, Permits]) -> Flow[None]:
    """Gives back a permit that nobody waits for any more. Fails quietly: its slot is then wasted, no more."""
    if isinstance(permit, Permits):
        for one in permit:
            yield from give_back(core, one)
        return
    if permit.number is None or not permit.ours:
        # What somebody else got under the same id, somebody else may be using.
        return
    try:
        told = yield from release(core, permit.key, permit.number, core.give_back_ns)
    except QuorateError:
        core.counters.count("not_given_back")
        return
    core.counters.count("given_back" if told else "not_given_back")


def renew(core: Core, key: str, number: int) -> Flow[Renewed]:
    """Extends the lease of a permit."""

    def read(answer: Mapping[str, Any], attempts: Attempts) -> Renewed:
        length = ns_down(answer.get("start_before_ms"), "start_before_ms")
        return Renewed(ns_down(answer.get("lease_ms"), "lease_ms") / NS, attempts.first_sent_ns + length)

    request = post("/renew", {"key": key, "permit": number})
    told = yield from ask(core, request, Twice.REPEATABLE, read, patience_ns=int(core.options.timeout * NS))
    return told.value
