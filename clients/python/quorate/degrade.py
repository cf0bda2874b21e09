"""What becomes of a request for a permit when nobody decides: the three answers to `on_unavailable`, two of them degraded.

Nothing here happens unless it was asked for, and everything here is counted. While the cluster is done without, one call every
`probe_every` tries it again; the others do not wait for it.
"""

from __future__ import annotations

from typing import Optional, Union

from .core import Core, new_request_id
from .effects import Flow, Sleep
from .errors import QuorateError, Unavailable
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
    """Notes that nobody decided; whether to go on without the cluster."""
    if core.options.on_unavailable == "closed":
        return False
    core.down = error
    core.probe_at_ns = core.now() + int(core.options.probe_every * NS)
    return True


def without_cluster(
    core: Core, key: str, limit: Optional[Limit], cost: int, until_ns: Optional[int]
) -> Flow[Union[Permit, Denied]]:
    """A permit that the cluster knows nothing of, or the denial of one by the local limiter."""
    now = core.now()
    if core.options.on_unavailable == "open":
        core.counters.count("degraded_open")
        return Permit(key, None, new_request_id(), start_at_ns=now, limit=limit, degraded="open")
    interval = interval_ns(limit if limit is not None else core.limits.get(key))
    if interval is None:
        why = core.down.detail if core.down is not None else "nobody decided"
        raise Unavailable(f"{why}; and no rate of {key!r} is known that a local limiter could keep")
    slot, taken = core.local.take(key, interval, cost, now, until_ns)
    if not taken:
        core.counters.count("degraded_local_denied")
        detail = "the cluster is out of reach, and the local limiter says no"
        return Denied(key, detail, "not_free_now", (slot - now) / NS)
    if slot > now:
        yield Sleep(slot)
    core.counters.count("degraded_local")
    return Permit(key, None, new_request_id(), start_at_ns=slot, limit=limit, degraded="local")
