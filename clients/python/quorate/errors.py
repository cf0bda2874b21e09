"""What can come of a call besides a permit, told apart by what it says about the permit.

| error | the permit |
|---|---|
| :class:`RateLimited` | over the limit; nothing was consumed |
| :class:`Timeout` | the same, for all of the time that was allowed |
| :class:`Unavailable` | nobody decided; certainly nothing was consumed |
| :class:`OutcomeUnknown` | it may or may not have been granted |
| :class:`Refused` | the request as such was refused; asking again changes nothing |

Wrong arguments are `TypeError` and `ValueError`, as everywhere in Python.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Tuple, Type


class QuorateError(Exception):
    """Whatever this package raises, wrong arguments aside."""

    def __init__(self, detail: str, *, problem: Optional[Mapping[str, Any]] = None) -> None:
        super().__init__(detail)
        #: What happened, for a person.
        self.detail: str = detail
        #: What the node said (RFC 9457), if one did.
        self.problem: Optional[Mapping[str, Any]] = problem
        #: How an earlier attempt of the same call was lost that may have been applied; `None` if none was.
        self.doubt: Optional[str] = None

    @property
    def code(self) -> Optional[str]:
        """The stable word of the problem, such as `no_quorum`."""
        code = self.problem.get("code") if self.problem else None
        return code if isinstance(code, str) else None

    def __reduce__(self) -> Any:
        # Exceptions cross process pools; keyword arguments do not survive the default way.
        return _rebuild, (type(self), dict(self.__dict__))


def _rebuild(kind: Type[QuorateError], members: Dict[str, Any]) -> QuorateError:
    error: QuorateError = kind.__new__(kind, members["detail"])
    error.__dict__.update(members)
    error.args = (error.detail,)
    return error


class RateLimited(QuorateError):
    """Over the limit. Nothing was consumed."""

    def __init__(
        self,
        detail: str,
        *,
        key: Optional[str] = None,
        reason: Optional[str] = None,
        retry_after: Optional[float] = None,
        denied_by: Optional[str] = None,
        problem: Optional[Mapping[str, Any]] = None,
    ) -> None:
        super().__init__(detail, problem=problem)
        #: Of several keys in one decision, the one that refused.
        self.denied_by = denied_by
        #: The key that was asked for.
        self.key = key
        #: Which rule refused: `reservations_full`, `would_wait_too_long`, `not_free_now`, `window_full`, `in_flight_full`.
        self.reason = reason
        #: When to ask again, in seconds from the receipt of the denial; `None` if nobody said.
        self.retry_after = retry_after


class Timeout(RateLimited, TimeoutError):
    """No permit could be had within the time that was allowed. Nothing is held."""


class Unavailable(QuorateError):
    """Nobody decided. Certainly nothing was consumed."""


class OutcomeUnknown(QuorateError):
    """The request may or may not have been applied. A permit that nobody uses only wastes its slot."""

    def __init__(
        self, detail: str, *, request_ids: Tuple[str, ...] = (), problem: Optional[Mapping[str, Any]] = None
    ) -> None:
        super().__init__(detail, problem=problem)
        #: The ids it was asked under, in order; only requests for permits have any, and only a batch has several.
        self.request_ids = request_ids

    @property
    def request_id(self) -> Optional[str]:
        """The id, where there is one."""
        return self.request_ids[0] if len(self.request_ids) == 1 else None


class Refused(QuorateError):
    """A node refused the request as such: a limit that makes no sense, no limit at all, a policy that is not there."""
