"""What one answer means: the table of outcomes, in code.

Only a node of ours can say that nothing was consumed. A 503 without our code comes from something in between, which may well
have passed the request on.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Callable, Generic, Mapping, Optional, TypeVar, Union

from .effects import Reply
from .errors import QuorateError, Refused, Unavailable
from .permit import read_denied

T = TypeVar("T")

#: Certainly not applied, and another node, or the same one later, may do better.
_TRY_ANOTHER = frozenset(("no_quorum", "no_leader", "disk_full", "overloaded", "shutting_down"))
#: Certainly not applied, and decided by the whole cluster: another node says the same.
_SAID_BY_ALL = frozenset(("too_many_keys", "history_unavailable"))
_IN_DOUBT = frozenset(("outcome_unknown", "internal"))


def is_outage(error: QuorateError) -> bool:
    """Whether an error says that nobody decided, and not that the cluster did."""
    return error.code is None or error.code in _TRY_ANOTHER or error.code in _IN_DOUBT


@dataclass(frozen=True)
class Settled(Generic[T]):
    """An answer."""

    value: T


@dataclass(frozen=True)
class Final:
    """An error that asking again does not change."""

    error: QuorateError


@dataclass(frozen=True)
class Again:
    """Ask another node."""

    detail: str
    #: Whether the request may have been applied.
    in_doubt: bool
    retry_after_ns: Optional[int] = None
    problem: Optional[Mapping[str, Any]] = None
    #: Whether to stay away for all of `retry_after_ns`.
    hold: bool = False


Judgement = Union[Settled[T], Final, Again]


def judge(node: str, reply: Reply, read: Callable[[Mapping[str, Any]], T]) -> Judgement[T]:
    """What a reply means. `read` makes the value of a 200, and raises `ValueError` for one that no node of ours gives."""
    answer = reply.answer
    if answer is None:
        return Again(f"{node}: {reply.why}", in_doubt=reply.sent_ns is not None)
    content = _object(answer.body)
    if answer.status == 200:
        try:
            if content is None:
                raise ValueError("no JSON object")
            return Settled(read(content))
        except (ValueError, KeyError, TypeError) as error:
            return Again(f"{node}: an answer that no node of ours gives: {error}", in_doubt=True)
    code = content.get("code") if content is not None else None
    if content is None or not isinstance(code, str):
        return Again(f"{node}: status {answer.status}, and not from a node of ours", in_doubt=answer.status >= 500)
    detail = str(content.get("detail", code))
    if code == "denied":
        denied = read_denied(content, str(content.get("key", "")))
        return Final(denied.error())
    if code in _TRY_ANOTHER:
        return Again(f"{node}: {detail}", False, _retry_after_ns(content), content, code == "overloaded")
    if code in _SAID_BY_ALL:
        return Final(Unavailable(detail, problem=content))
    if code in _IN_DOUBT or answer.status >= 500:
        return Again(f"{node}: {detail}", True, _retry_after_ns(content), content)
    return Final(Refused(detail, problem=content))


def _object(body: bytes) -> Optional[Mapping[str, Any]]:
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _retry_after_ns(problem: Mapping[str, Any]) -> Optional[int]:
    retry = problem.get("retry_after_ms")
    if isinstance(retry, bool) or not isinstance(retry, (int, float)) or not 0 <= retry < 1e15:
        return None
    return int(retry * 1e6)
