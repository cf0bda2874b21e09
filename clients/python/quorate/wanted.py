"""Arguments of the clients' methods, checked before anything is sent."""

from __future__ import annotations

import time
from typing import Any, Iterable, Mapping, Optional, Tuple, Union

from .batch import Ask, asks
from .core import Core
from .limit import Limit, check_cost, check_key, check_limit
from .options import check_seconds
from .permit import NS, Permit, Permits
from .want import Wanted, WantedAll

ALL_OF_MAX = 16
_SECONDS_MAX = 366 * 86_400.0


def wanted(core: Core, key: object, limit: object, cost: object) -> Wanted:
    """What is asked for."""
    checked: Optional[Limit] = check_limit(limit)
    return Wanted(check_key(key), checked, check_cost(cost), core.options.worker)


def until(timeout: Optional[float]) -> Optional[int]:
    """The instant at which a wait has to be over."""
    if timeout is None:
        return None
    return time.monotonic_ns() + int(check_seconds("timeout", timeout, _SECONDS_MAX) * NS)


def wanted_all(core: Core, requests: Iterable[Union[Ask, Mapping[str, Any]]]) -> WantedAll:
    """Several keys in one decision."""
    parts = asks(requests)
    if not 2 <= len(parts) <= ALL_OF_MAX:
        raise ValueError(f"one decision is about 2 to {ALL_OF_MAX} keys, this one about {len(parts)}")
    if len({part.key for part in parts}) != len(parts):
        raise ValueError("a key comes only once in one decision")
    if any(part.max_wait is not None or part.request_id is not None for part in parts):
        raise ValueError("max_wait and request_id are of the whole decision, not of one key")
    return WantedAll(
        tuple(Wanted(part.key, check_limit(part.limit), part.cost, None) for part in parts), core.options.worker
    )


def check_permit(permit: object) -> Union[Permit, Permits]:
    """A permit, and not the denial of one."""
    if not isinstance(permit, (Permit, Permits)):
        raise TypeError(f"that is no permit but {type(permit).__name__}")
    return permit


def check_number(permit: Union[Permit, str], number: Optional[int]) -> Tuple[str, Optional[int]]:
    """Key and number of what is to be given back."""
    if isinstance(permit, Permit):
        if number is not None:
            raise TypeError("a permit knows its number")
        return permit.key, permit.number
    if isinstance(number, bool) or not isinstance(number, int):
        raise TypeError("either a permit, or a key and the number of one")
    if not 0 <= number < 2**64:
        raise ValueError(f"{number} is no number of a permit")
    return check_key(permit), number
