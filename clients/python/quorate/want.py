"""What is asked for: a permit of one key, or permits of several keys in one decision. How it is got is the same: `acquire.py`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Dict, Generic, Mapping, Optional, Tuple, TypeVar, Union

from .core import Attempts, Core, new_request_id
from .degrade import without_cluster
from .errors import Unavailable
from .limit import Limit, canonical, lead_ms_max
from .permit import Permit, Permits, read_permit

#: What a request gets.
G = TypeVar("G", Permit, Permits)


class Want(ABC, Generic[G]):
    """What is asked for, and how to read what comes of it."""

    #: For messages: the key, or the keys.
    key: str
    worker: Optional[str]

    @property
    @abstractmethod
    def name(self) -> Tuple[str, str, int]:
        """What two requests have in common that get the same answer."""

    @abstractmethod
    def content(self) -> Dict[str, Any]:
        """The members that say what is asked for."""

    @abstractmethod
    def read(self, answer: Mapping[str, Any], attempts: Attempts, request_id: str, own_id: bool) -> G:
        """What a 200 grants."""

    @abstractmethod
    def remember(self, core: Core, granted: G) -> None:
        """Keeps what the cluster says of the limits."""

    @abstractmethod
    def lead_ms_max(self) -> Optional[float]:
        """The longest lead that makes sense; `None` if that is not known."""

    @abstractmethod
    def without_cluster(self, core: Core) -> Union[G, int]:
        """What a degraded mode makes of it: the grant, or the instant at which there may be one."""


@dataclass(frozen=True)
class Wanted(Want[Permit]):
    """One key."""

    key: str
    limit: Optional[Limit]
    cost: int
    worker: Optional[str]

    @property
    def name(self) -> Tuple[str, str, int]:
        return self.key, canonical(self.limit), self.cost

    def content(self) -> Dict[str, Any]:
        content: Dict[str, Any] = {"key": self.key}
        if self.limit is not None:
            content["limit"] = self.limit
        if self.cost != 1:
            content["cost"] = self.cost
        return content

    def read(self, answer: Mapping[str, Any], attempts: Attempts, request_id: str, own_id: bool) -> Permit:
        return read_permit(
            answer,
            key=self.key,
            request_id=request_id,
            first_sent_ns=attempts.first_sent_ns,
            received_ns=attempts.received_ns,
            own_id=own_id,
        )

    def remember(self, core: Core, granted: Permit) -> None:
        core.remember_limit(self.key, granted.limit, granted.policy)

    def lead_ms_max(self) -> Optional[float]:
        return lead_ms_max(self.limit)

    def without_cluster(self, core: Core) -> Union[Permit, int]:
        return without_cluster(core, self.key, self.limit, self.cost)


@dataclass(frozen=True)
class WantedAll(Want[Permits]):
    """Several keys: all or nothing, and one slot."""

    parts: Tuple[Wanted, ...]
    worker: Optional[str]

    @property
    def key(self) -> str:  # type: ignore[override]
        return ", ".join(part.key for part in self.parts)

    @property
    def name(self) -> Tuple[str, str, int]:
        return self.key, repr([part.name for part in self.parts]), 0

    def content(self) -> Dict[str, Any]:
        return {"all_of": [part.content() for part in self.parts]}

    def read(self, answer: Mapping[str, Any], attempts: Attempts, request_id: str, own_id: bool) -> Permits:
        permits = answer["permits"]
        if not isinstance(permits, list) or len(permits) != len(self.parts):
            raise ValueError("not as many permits as keys")
        common = {name: value for name, value in answer.items() if name != "permits"}
        return Permits(
            tuple(
                part.read({**permit, **common}, attempts, request_id, own_id)
                for part, permit in zip(self.parts, permits)
            )
        )

    def remember(self, core: Core, granted: Permits) -> None:
        for part, permit in zip(self.parts, granted):
            part.remember(core, permit)

    def lead_ms_max(self) -> Optional[float]:
        known = [most for most in (part.lead_ms_max() for part in self.parts) if most is not None]
        return min(known, default=None)

    def without_cluster(self, core: Core) -> Union[Permits, int]:
        if core.options.on_unavailable != "open":
            down = core.down
            why = down.detail if down is not None else "nobody decided"
            raise Unavailable(f"{why}; and a local limiter does not decide for several keys at once")
        core.counters.count("degraded_open")
        request_id, now = new_request_id(), core.now()
        return Permits(
            tuple(
                Permit(part.key, None, request_id, start_at_ns=now, limit=part.limit, degraded="open")
                for part in self.parts
            )
        )
