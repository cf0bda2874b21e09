"""A permit in the hands of a worker, and the denial of one.

Invariants
- A wait counts from the *receipt* of the answer, so it can only end late.
- The deadline of a start window counts from the *first send* of the request, so it can only come early.
- Both are instants of this machine's monotonic clock. `slot_ms` is the cluster's own time and compares with nothing here.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Iterator, Mapping, Optional, Tuple

from .errors import RateLimited
from .limit import Limit, is_lease

NS = 1_000_000_000


@dataclass(frozen=True)
class Permit:
    """A granted permit. Always true; a :class:`Denied` is always false."""

    #: The key it was granted for.
    key: str
    #: The fencing number: grows over the whole cluster in grant order. `None` if the cluster did not grant it (`degraded`).
    number: Optional[int]
    #: The id it was granted under.
    request_id: str
    #: Start no earlier, on the clock of `time.monotonic_ns()`.
    start_at_ns: int
    #: Start no later, on the same clock; `None` if it does not expire.
    dead_at_ns: Optional[int] = None
    #: Cluster time of the slot. Never compare it with a clock of yours.
    slot_ms: Optional[float] = None
    #: The limit that it was decided by.
    limit: Optional[Limit] = None
    #: The stored policy that the limit came from, and its revision.
    policy: Optional[str] = None
    policy_revision: Optional[int] = None
    #: Permits of this key that lay in the future just then.
    reserved: int = 0
    #: How much was left; for all kinds of limits but spacing.
    remaining: Optional[int] = None
    #: Remembered by the cluster from an earlier request under the same id.
    replayed: bool = False
    #: Whether this call asked for it, under an id that it made itself or as the first; not so for a grant that is remembered from
    #: before.
    ours: bool = True
    #: `"open"` or `"local"` if the cluster could not be asked and `on_unavailable` let it pass; else `None`.
    degraded: Optional[str] = None

    def __bool__(self) -> bool:
        return True

    @property
    def is_lease(self) -> bool:
        """Whether it lasts until it is given back: the permit of a `concurrency` limit."""
        return self.number is not None and is_lease(self.limit)

    def ready_in(self) -> float:
        """Seconds until it may be used; 0 if that is now."""
        return max(0, self.start_at_ns - time.monotonic_ns()) / NS

    def left(self) -> Optional[float]:
        """Seconds until it is dead; 0 if it is, `None` if it never will be."""
        if self.dead_at_ns is None:
            return None
        return max(0, self.dead_at_ns - time.monotonic_ns()) / NS

    @property
    def dead(self) -> bool:
        """Whether its start window is over: its slot is spent, discard it and ask again."""
        return self.is_dead(time.monotonic_ns())

    def is_dead(self, now_ns: int) -> bool:
        """The same at another instant."""
        return self.dead_at_ns is not None and now_ns > self.dead_at_ns


@dataclass(frozen=True)
class Permits:
    """Permits of several keys in one decision, all with one slot. Always true."""

    #: In the order of the requests.
    permits: Tuple[Permit, ...]

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Permit]:
        return iter(self.permits)

    def __len__(self) -> int:
        return len(self.permits)

    def __getitem__(self, key: str) -> Permit:
        for permit in self.permits:
            if permit.key == key:
                return permit
        raise KeyError(key)

    @property
    def request_id(self) -> str:
        """The id they were granted under."""
        return self.permits[0].request_id

    @property
    def start_at_ns(self) -> int:
        """Start no earlier, on the clock of `time.monotonic_ns()`."""
        return self.permits[0].start_at_ns

    @property
    def dead_at_ns(self) -> Optional[int]:
        """Start no later, on the same clock; `None` if they do not expire."""
        return self.permits[0].dead_at_ns

    @property
    def degraded(self) -> Optional[str]:
        """`"open"` if the cluster could not be asked; else `None`."""
        return self.permits[0].degraded

    @property
    def is_lease(self) -> bool:
        """Whether one of them lasts until it is given back."""
        return any(permit.is_lease for permit in self.permits)

    def ready_in(self) -> float:
        """Seconds until they may be used; 0 if that is now."""
        return self.permits[0].ready_in()

    def left(self) -> Optional[float]:
        """Seconds until they are dead; 0 if they are, `None` if they never will be."""
        return self.permits[0].left()

    @property
    def dead(self) -> bool:
        """Whether their start window is over: discard them and ask again."""
        return self.permits[0].dead

    def is_dead(self, now_ns: int) -> bool:
        """The same at another instant."""
        return self.permits[0].is_dead(now_ns)


@dataclass(frozen=True)
class Denied:
    """No permit. Always false."""

    key: str
    #: What happened, for a person.
    detail: str
    #: Which rule refused.
    reason: Optional[str] = None
    #: When to ask again, in seconds from the receipt.
    retry_after: Optional[float] = None
    #: Of several keys in one decision, the one that refused.
    denied_by: Optional[str] = None
    #: Whether it was answered from the local denial cache, without asking the cluster.
    cached: bool = False
    #: What the node said, if one did.
    problem: Optional[Mapping[str, Any]] = None

    def __bool__(self) -> bool:
        return False

    def error(self) -> RateLimited:
        """The same as an exception."""
        return RateLimited(
            self.detail,
            key=self.key,
            reason=self.reason,
            retry_after=self.retry_after,
            denied_by=self.denied_by,
            problem=self.problem,
        )


def ns_up(millis: object, member: str) -> int:
    """Milliseconds of an answer in whole nanoseconds, rounded up: for waits."""
    return math.ceil(_millis(millis, member) * 1e6)


def ns_down(millis: object, member: str) -> int:
    """The same rounded down: for deadlines."""
    return math.floor(_millis(millis, member) * 1e6)


def _millis(millis: object, member: str) -> float:
    if isinstance(millis, bool) or not isinstance(millis, (int, float)):
        raise ValueError(f"{member} is not a number")
    if not 0 <= millis < 1e15:
        raise ValueError(f"{member} is no length of time")
    return millis


def _whole(answer: Mapping[str, Any], member: str) -> int:
    number = answer.get(member)
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"{member} is not a whole number")
    return number


def read_permit(
    answer: Mapping[str, Any], *, key: str, request_id: str, first_sent_ns: int, received_ns: int, own_id: bool
) -> Permit:
    """The permit of a 200; `ValueError` if no node of ours would say that.

    `own_id`: whether this call made the id. A grant that is remembered under any other may have been asked for by somebody
    else, or by an earlier call, at an instant that nobody here knows: its window counts as over.
    """
    if answer.get("granted") is not True or answer.get("key") != key:
        raise ValueError("it is no permit of this key")
    replayed = answer.get("replayed") is True
    ours = not replayed or own_id
    dead_at: Optional[int] = None
    if answer.get("start_before_ms") is not None:
        window = ns_down(answer["start_before_ms"], "start_before_ms")
        dead_at = first_sent_ns + window if ours else first_sent_ns - 1
    limit = answer.get("limit")
    return Permit(
        key=key,
        number=_whole(answer, "permit"),
        request_id=request_id,
        start_at_ns=received_ns + ns_up(answer.get("wait_ms"), "wait_ms"),
        dead_at_ns=dead_at,
        slot_ms=_millis(answer.get("slot_ms"), "slot_ms"),
        limit=limit if isinstance(limit, (str, Mapping)) else None,
        policy=answer.get("policy"),
        policy_revision=answer.get("policy_revision"),
        reserved=_whole(answer, "reserved"),
        remaining=answer.get("remaining"),
        replayed=replayed,
        ours=ours,
    )


def read_denied(problem: Mapping[str, Any], key: str, *, cached: bool = False) -> Denied:
    """The denial in a problem."""
    retry = problem.get("retry_after_ms")
    known = isinstance(retry, (int, float)) and not isinstance(retry, bool) and 0 <= retry < 1e15
    return Denied(
        key=key,
        detail=str(problem.get("detail", "over the limit")),
        reason=problem.get("reason") if isinstance(problem.get("reason"), str) else None,
        retry_after=retry / 1000 if isinstance(retry, (int, float)) and known else None,
        denied_by=problem.get("denied_by") if isinstance(problem.get("denied_by"), str) else None,
        cached=cached,
        problem=problem,
    )
