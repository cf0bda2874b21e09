"""Many requests for permits in one call, decided in order in one log entry."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Union

from .core import Attempts, Core, Twice, ask, new_request_id, post
from .effects import Flow
from .errors import QuorateError, Refused, Unavailable
from .limit import Limit, check_cost, check_key, check_limit, check_request_id, lead_ms_max
from .options import check_seconds
from .permit import NS, Denied, Permit, read_denied, read_permit
from .release import give_back

REQUESTS_MAX = 1000


@dataclass(frozen=True)
class Ask:
    """One request of a batch."""

    key: str
    limit: Optional[Limit] = None
    cost: int = 1
    #: The longest acceptable time until the slot, in seconds; `None`: any. 0 takes only what is free now.
    max_wait: Optional[float] = None
    #: Names the request; random if `None`.
    request_id: Optional[str] = None

    def __post_init__(self) -> None:
        check_key(self.key)
        check_limit(self.limit)
        check_cost(self.cost)
        if self.max_wait is not None:
            check_seconds("max_wait", self.max_wait, 366 * 86400.0)
        check_request_id(self.request_id)


#: A permit, a denial, or the error of one request of a batch (not raised).
Result = Union[Permit, Denied, QuorateError]


def batch(core: Core, requests: Iterable[Union[Ask, Mapping[str, Any]]], atomic: bool) -> Flow[List[Result]]:
    """The results in the order of the requests. With `atomic` all are granted or none: then the first refusal is raised.

    The permits are not waited for: see `wait`.
    """
    wanted = asks(requests)
    if not 1 <= len(wanted) <= REQUESTS_MAX:
        raise ValueError(f"a batch has 1 to {REQUESTS_MAX} requests, this one has {len(wanted)}")
    ids = [one.request_id or new_request_id() for one in wanted]
    content = {"requests": [_content(core, one, rid) for one, rid in zip(wanted, ids)], "atomic": bool(atomic)}

    def read(answer: Mapping[str, Any], attempts: Attempts) -> List[Result]:
        results = answer["results"]
        if not isinstance(results, list) or len(results) != len(wanted):
            raise ValueError("not as many results as requests")
        return [_result(result, one, rid, attempts) for result, one, rid in zip(results, wanted, ids)]

    patience = int(core.options.timeout * NS)
    request = post("/acquire/batch", content)
    told = yield from ask(core, request, Twice.PERMIT, read, patience_ns=patience, request_ids=tuple(ids))
    if told.stop is not None:
        for result in told.value:
            if isinstance(result, Permit):
                yield from give_back(core, result)
        raise told.stop
    core.counters.count("granted", sum(isinstance(result, Permit) for result in told.value))
    core.counters.count("denied", sum(isinstance(result, Denied) for result in told.value))
    return told.value


def asks(requests: Iterable[Union[Ask, Mapping[str, Any]]]) -> List[Ask]:
    """The requests, each of them checked."""
    return [one if isinstance(one, Ask) else Ask(**one) for one in requests]


def _content(core: Core, one: Ask, request_id: str) -> Dict[str, Any]:
    content: Dict[str, Any] = {"key": one.key, "cost": one.cost, "request_id": request_id}
    if one.limit is not None:
        content["limit"] = check_limit(one.limit)
    if core.options.worker is not None:
        content["worker"] = core.options.worker
    if one.max_wait == 0:
        content["wait"] = "none"
        return content
    leads = [core.round_trip.lead_ms(), lead_ms_max(one.limit)]
    if one.max_wait is not None:
        content["max_wait_ms"] = math.floor(one.max_wait * 1e6) / 1e3
        leads.append(content["max_wait_ms"])
    # Where a stored policy has the limit, nobody here knows how long a lead may be.
    if leads[0] is None or one.limit is None:
        return content
    lead = min(most for most in leads if most is not None)
    if lead:
        content["lead_ms"] = lead
    return content


def _result(result: Any, one: Ask, request_id: str, attempts: Attempts) -> Result:
    if not isinstance(result, dict):
        raise ValueError("a result is no object")
    if result.get("granted") is True:
        return read_permit(
            result,
            key=one.key,
            request_id=request_id,
            first_sent_ns=attempts.first_sent_ns,
            received_ns=attempts.received_ns,
            own_id=one.request_id is None,
        )
    if not isinstance(result.get("code"), str):
        raise ValueError("a result is neither a permit nor a problem")
    if result["code"] == "denied":
        return read_denied(result, one.key)
    detail = str(result.get("detail", result["code"]))
    kind = Unavailable if result.get("status") == 503 else Refused
    return kind(detail, problem=result)
