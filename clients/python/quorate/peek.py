"""A look at a key: linearizable, like a decision, but nothing is consumed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional
from urllib.parse import quote

from .core import Attempts, Core, Twice, ask
from .effects import Flow
from .errors import Refused
from .http1 import Request
from .limit import Limit
from .permit import NS


@dataclass(frozen=True)
class KeyState:
    """One key as it stands."""

    key: str
    #: The limit in force: a stored policy's, or that of the last grant.
    limit: Limit
    #: The stored policy it comes from.
    policy: Optional[str]
    #: Seconds of cluster time until the slot that an acquire of cost 1 would get.
    next_in: float
    #: Permits that lie in the future.
    reserved: int
    #: How many acquires of cost 1 would be granted one after the other now.
    remaining: int
    #: Leases that have not ended.
    in_flight: int
    #: The number of the last grant; 0 if the key is idle.
    permit: int
    #: How long an acquire of cost 1 would be told to stay away, in seconds; 0 if it would be granted.
    retry_after: float


def path(collection: str, name: str) -> str:
    """The path of one thing. `.` and `..` mean directories to whatever reads URLs, also when encoded."""
    if name in ("", ".", ".."):
        raise ValueError(f"{name!r} cannot be part of a URL")
    return f"/{collection}/{quote(name, safe='')}"


def peek(core: Core, key: str) -> Flow[Optional[KeyState]]:
    """The key, or `None` if nothing is known of it: never used, or idle and forgotten."""

    def read(answer: Mapping[str, Any], _attempts: Attempts) -> KeyState:
        if answer["key"] != key:
            raise ValueError("it is another key")
        return KeyState(
            key=key,
            limit=answer["limit"],
            policy=answer.get("policy"),
            next_in=max(0.0, float(answer["next_ms"]) - float(answer["now_ms"])) / 1000,
            reserved=int(answer["reserved"]),
            remaining=int(answer["remaining"]),
            in_flight=int(answer["in_flight"]),
            permit=int(answer["permit"]),
            retry_after=float(answer["retry_after_ms"]) / 1000,
        )

    request = Request("GET", path("keys", key))
    try:
        told = yield from ask(core, request, Twice.NOTHING, read, patience_ns=int(core.options.timeout * NS))
    except Refused as error:
        if error.code == "no_limit":
            return None
        raise
    return told.value
