"""Arguments of the clients' methods, checked before anything is sent."""

from __future__ import annotations

import time
from typing import Optional, Tuple, Union

from .acquire import Wanted
from .core import Core
from .limit import Limit, check_cost, check_key, check_limit
from .options import check_seconds
from .permit import NS, Permit

REQUEST_ID_BYTES_MAX = 128
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


def check_request_id(request_id: Optional[str]) -> Optional[str]:
    """A name of one's own for a request; `None` for a random one."""
    if request_id is None:
        return None
    if not isinstance(request_id, str):
        raise TypeError(f"a request_id is a str, not {type(request_id).__name__}")
    if not 1 <= len(request_id.encode("utf-8", "replace")) <= REQUEST_ID_BYTES_MAX:
        raise ValueError(f"a request_id has 1 to {REQUEST_ID_BYTES_MAX} bytes")
    return request_id


def check_permit(permit: object) -> Permit:
    """A permit, and not the denial of one."""
    if not isinstance(permit, Permit):
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
