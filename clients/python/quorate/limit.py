"""Limits as a request writes them, and the little that the client itself has to know of them.

Not here: what a limit means. The cluster reads it, and its refusal says what is wrong.
"""

from __future__ import annotations

import json
import re
from typing import Any, Mapping, Optional, Union

#: `"1/6s"`, or an object such as `{"rate": "1/6s", "start_window": "250ms"}`.
Limit = Union[str, Mapping[str, Any]]

KEY_BYTES_MAX = 256
REQUEST_ID_BYTES_MAX = 128
WORKER_BYTES_MAX = 64
COST_MAX = 1_000_000
#: What the cluster takes for `max_reserved` where a spacing limit says nothing.
_MAX_RESERVED = 10
_UNITS_NS = {
    "us": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
    "d": 86_400_000_000_000,
}
_RATE = re.compile(r"([0-9]{1,10})/([0-9]{0,15})(us|ms|s|m|h|d)", re.ASCII)


def check_key(key: object) -> str:
    """The key, or the error that says what is wrong with it."""
    return check_text("a key", key, KEY_BYTES_MAX)


def check_request_id(request_id: object) -> Optional[str]:
    """A name of one's own for a request; `None` for a random one."""
    return None if request_id is None else check_text("request_id", request_id, REQUEST_ID_BYTES_MAX)


def check_text(name: str, text: object, most: int) -> str:
    """A short text, or the error that says what is wrong with it."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is a str, not {type(text).__name__}")
    try:
        length = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} is text that UTF-8 can write: {error}") from None
    if not 1 <= length <= most:
        raise ValueError(f"{name} has 1 to {most} bytes, this one has {length}")
    return text


def check_cost(cost: object) -> int:
    """The cost, or the error that says what is wrong with it."""
    if isinstance(cost, bool) or not isinstance(cost, int):
        raise TypeError(f"a cost is an int, not {type(cost).__name__}")
    if not 1 <= cost <= COST_MAX:
        raise ValueError(f"a cost lies between 1 and {COST_MAX}, this one is {cost}")
    return cost


def check_limit(limit: object) -> Optional[Limit]:
    """The limit if it has the right shape; what it says is for the cluster to judge."""
    if limit is None or isinstance(limit, str):
        return limit
    if not isinstance(limit, Mapping):
        raise TypeError(f'a limit is a str such as "1/6s" or a dict with a "rate", not {type(limit).__name__}')
    try:
        json.dumps(dict(limit), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"a limit has to be JSON: {error}") from None
    return dict(limit)


def canonical(limit: Optional[Limit]) -> str:
    """One text for one limit, to tell limits apart by."""
    return json.dumps(limit, sort_keys=True)


def interval_ns(limit: Optional[Limit]) -> Optional[int]:
    """The time between two permits at the limit's rate, rounded up; `None` if the limit says no rate.

    >>> interval_ns("1/6s"), interval_ns({"kind": "bucket", "rate": "3/s", "burst": 9})
    (6000000000, 333333334)
    """
    rate = limit.get("rate") if isinstance(limit, Mapping) else limit
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None:
        return None
    count, many, unit = int(match[1]), int(match[2] or "1"), _UNITS_NS[match[3]]
    return -(-many * unit // count) if count and many else None


def lead_ms_max(limit: Optional[Limit]) -> Optional[float]:
    """The longest lead that a request of this limit may have; `None` if the limit does not say. A slot that lies ahead by a lead is
    a reservation of a spacing limit, and there are only so many.

    >>> lead_ms_max("1000/s"), lead_ms_max({"rate": "1/s", "max_reserved": 0}), lead_ms_max({"kind": "concurrency", "max": 1})
    (10.0, 0.0, None)
    """
    interval = interval_ns(limit)
    if interval is None or (isinstance(limit, Mapping) and limit.get("kind", "spacing") != "spacing"):
        return None
    places = limit.get("max_reserved", _MAX_RESERVED) if isinstance(limit, Mapping) else _MAX_RESERVED
    if isinstance(places, bool) or not isinstance(places, int):
        return None
    return max(0, places) * interval // 1000 / 1000


def is_lease(limit: Optional[Limit]) -> bool:
    """Whether a permit of this limit lasts until it is given back."""
    return isinstance(limit, Mapping) and limit.get("kind") == "concurrency"
