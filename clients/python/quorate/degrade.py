"""What becomes of a request for a permit when nobody decides: the three answers to `on_unavailable`, two of them degraded.

Nothing here happens unless it was asked for, and everything here is counted. While the cluster is done without, one call every
`probe_every` tries it again; the others do not wait for it.
"""

from __future__ import annotations

from typing import Optional, Union

from .core import Core, new_request_id
from .errors import QuorateError, Unavailable
from .judge import is_outage
from .limit import Limit, interval_ns
from .permit import NS, Denied, Permit


def is_down(core: Core) -> bool:
    """Whether to go on without asking. Whoever is told no is the one that asks."""
    if core.down is None:
        return False
    now = core.now()
    if now < core.probe_at_ns:
        return True
    core.probe_at_ns = now + int((core.options.degrade_after + core.options.probe_every) * NS)
    return False


def over(core: Core, error: QuorateError) -> bool:
    """Notes that nobody decided; whether to go on without the cluster. What the cluster itself decided is no reason to."""
    if core.options.on_unavailable == "closed" or not is_outage(error):
        return False
    core.down = error
    core.probe_at_ns = core.now() + int(core.options.probe_every * NS)
    return True


def without_cluster(core: Core, key: str, limit: Optional[Limit], cost: int) -> Union[Permit, int]:
    """A permit that the cluster knows nothing of, or the instant at which the local limiter may have one."""
    now = core.now()
    if core.options.on_unavailable == "open":
        core.counters.count("degraded_open")
        return Permit(key, None, new_request_id(), start_at_ns=now, limit=limit, degraded="open")
    interval = interval_ns(core.limit_of(key, limit))
    if interval is None:
        down = core.down
        why = down.detail if down is not None else "nobody decided"
        raise Unavailable(f"{why}; and no rate of {key!r} is known that a local limiter could keep")
    slot, taken = core.local.take(key, interval, cost, now)
    if not taken:
        return slot
    core.counters.count("degraded_local")
    return Permit(key, None, new_request_id(), start_at_ns=slot, limit=limit, degraded="local")


def local_denial(core: Core, key: str, slot_ns: int) -> Denied:
    """The local limiter's no."""
    core.counters.count("degraded_local_denied")
    detail = "the cluster is out of reach, and the local limiter says no"
    return Denied(key, detail, "not_free_now", max(0, slot_ns - core.now()) / NS)
