"""What can be set about a client, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional

from .limit import WORKER_BYTES_MAX, check_text

#: What becomes of a request that nobody decides.
OnUnavailable = Literal["closed", "open", "local"]
#: Within half of the time that the cluster remembers a request id.
TIMEOUT_MAX = 60.0
CONNECTIONS_MAX = 1024
ON_UNAVAILABLE = ("closed", "open", "local")


@dataclass(frozen=True)
class Options:
    """The settings of `Client` and `AsyncClient`; times in seconds.

    - `timeout`: how long one question may take to be decided, retries and all. Not how long a permit may be waited for.
    - `attempt_timeout`: one attempt; then the next node is asked.
    - `on_unavailable`: what becomes of a request for a permit that nobody decides. `"closed"`: the error. `"open"`: it passes.
      `"local"`: a limiter of this process alone decides, at `local_fraction` of the rate.
    - `local_fraction`: has to be given with `"local"`, and with nothing else.
    - `degrade_after`: in the degraded modes, how long to try before going on without the cluster.
    - `probe_every`: in the degraded modes, how long to go on without asking before the cluster is tried again.
    - `denial_cache`: whether a denial is believed until its `retry_after` without asking again.
    - `max_connections`: connections open at once, over all nodes; who finds none free waits for one. An `AsyncClient` has as
      many for each loop that it is used on.
    - `worker`: a label for the cluster's history.
    """

    timeout: float = 10.0
    attempt_timeout: float = 3.0
    on_unavailable: OnUnavailable = "closed"
    local_fraction: Optional[float] = None
    degrade_after: float = 2.0
    probe_every: float = 1.0
    denial_cache: bool = False
    max_connections: int = 64
    worker: Optional[str] = None

    def __post_init__(self) -> None:
        for name, most in (("timeout", TIMEOUT_MAX), ("attempt_timeout", TIMEOUT_MAX), ("degrade_after", TIMEOUT_MAX)):
            check_seconds(name, getattr(self, name), most, zero=False)
        check_seconds("probe_every", self.probe_every, 3600.0)
        if self.on_unavailable not in ON_UNAVAILABLE:
            raise ValueError(f"on_unavailable is one of {', '.join(ON_UNAVAILABLE)}, not {self.on_unavailable!r}")
        if (self.on_unavailable == "local") != (self.local_fraction is not None):
            raise ValueError('local_fraction goes with on_unavailable="local", and "local" needs it')
        if self.local_fraction is not None:
            check_seconds("local_fraction", self.local_fraction, 1.0, zero=False)
        if not isinstance(self.denial_cache, bool):
            raise TypeError("denial_cache is a bool")
        many = self.max_connections
        if isinstance(many, bool) or not isinstance(many, int):
            raise TypeError("max_connections is an int")
        if not 1 <= many <= CONNECTIONS_MAX:
            raise ValueError(f"max_connections lies between 1 and {CONNECTIONS_MAX}, this one is {many}")
        if self.worker is not None:
            check_text("worker", self.worker, WORKER_BYTES_MAX)


def check_seconds(name: str, value: object, most: float, *, zero: bool = True) -> float:
    """The number, or the error that says what is wrong with it."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is a number, not {type(value).__name__}")
    if not (0 <= value <= most) or (value == 0 and not zero):
        raise ValueError(f"{name} lies between 0 and {most:g}, this one is {value}")
    return float(value)
