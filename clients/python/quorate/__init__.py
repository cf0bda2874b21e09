"""Client of Quorate: permits that a whole cluster agrees on, for functions, threads, coroutines and processes.

>>> from quorate import throttle
>>> @throttle("github", "1/6s")
... def fetch(url): ...

Every call of `fetch`, in every worker on every machine, now starts at least six seconds after the one before. See
:class:`Client` for everything that is not a decorator, :class:`AsyncClient` for the same with `await`, :class:`Options` for the
settings, and :mod:`quorate.errors` for what can go wrong and what that says about the permit.
"""

from .async_client import AsyncClient, AsyncReservation
from .batch import Ask
from .counters import Stats
from .default import configure, default_async_client, default_client
from .errors import OutcomeUnknown, QuorateError, RateLimited, Refused, Timeout, Unavailable
from .limit import Limit
from .options import Options
from .peek import KeyState
from .permit import Denied, Permit, Permits
from .policies import Policy
from .release import Released, Renewed
from .sync_client import Client, Reservation
from .throttle import throttle
from .version import VERSION as __version__

__all__ = [
    "Ask",
    "AsyncClient",
    "AsyncReservation",
    "Client",
    "Denied",
    "KeyState",
    "Limit",
    "Options",
    "OutcomeUnknown",
    "Permit",
    "Permits",
    "Policy",
    "QuorateError",
    "RateLimited",
    "Refused",
    "Released",
    "Renewed",
    "Reservation",
    "Stats",
    "Timeout",
    "Unavailable",
    "configure",
    "default_async_client",
    "default_client",
    "throttle",
]
