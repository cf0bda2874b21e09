"""Stored rules: reading them, and changing them without running over somebody else's change.

A change is the same whether it is applied once or twice, so a lost attempt is followed by another. What that one is told may be
the doing of the first: a refusal then says nothing about the whole, and only a look can.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Iterable, List, Mapping, Optional, Tuple

from .core import Attempts, Core, Twice, ask
from .effects import Flow
from .errors import OutcomeUnknown, QuorateError, Refused
from .http1 import Request
from .limit import Limit, check_limit
from .peek import path
from .permit import NS

#: Refusals because of how things stand, which an earlier attempt may have made so.
_BY_STATE = frozenset(("revision_mismatch", "policy_conflict", "no_policy", "too_many_policies"))


@dataclass(frozen=True)
class Policy:
    """A stored rule: the limit of every key that matches."""

    name: str
    #: A key, a prefix that ends in `*`, or `*` alone.
    match: str
    limit: Limit
    #: Members of the limit that a request may bring itself.
    override: Tuple[str, ...]
    #: Grows with every change of any policy.
    revision: int


def _read(answer: Mapping[str, Any]) -> Policy:
    override = tuple(answer.get("override") or ())
    return Policy(str(answer["name"]), str(answer["match"]), answer["limit"], override, int(answer["revision"]))


def _patience(core: Core) -> int:
    return int(core.options.timeout * NS)


def policies(core: Core) -> Flow[List[Policy]]:
    """All policies, sorted by name."""

    def read(answer: Mapping[str, Any], _attempts: Attempts) -> List[Policy]:
        return [_read(policy) for policy in answer["policies"]]

    told = yield from ask(core, Request("GET", "/policies"), Twice.NOTHING, read, patience_ns=_patience(core))
    return told.value


def policy(core: Core, name: str) -> Flow[Optional[Policy]]:
    """One policy, or `None` if there is none of this name."""
    request = Request("GET", path("policies", _name(name)))
    try:
        told = yield from ask(core, request, Twice.NOTHING, lambda answer, _: _read(answer), patience_ns=_patience(core))
    except Refused as error:
        if error.code == "no_policy":
            return None
        raise
    return told.value


def put_policy(
    core: Core,
    name: str,
    match: str,
    limit: Limit,
    override: Iterable[str],
    if_revision: Optional[int],
    if_absent: bool,
) -> Flow[Policy]:
    """Makes a policy what it shall be. The same content again changes nothing and keeps its revision."""
    if not isinstance(match, str):
        raise TypeError(f"match is a str, not {type(match).__name__}")
    if limit is None:
        raise TypeError("a policy has a limit")
    if if_absent and if_revision is not None:
        raise ValueError("if_absent and if_revision exclude each other")
    words = tuple(override)
    content = {"match": match, "limit": check_limit(limit), "override": list(words)}
    headers = _if_revision(if_revision) + ((("if-none-match", "*"),) if if_absent else ())
    request = Request("PUT", path("policies", _name(name)), json.dumps(content).encode("utf-8"), headers)
    try:
        told = yield from ask(
            core, request, Twice.REPEATABLE, lambda answer, _: _read(answer), patience_ns=_patience(core)
        )
        return told.value
    except Refused as error:
        doubt = _doubt(error)
        if doubt is None:
            raise
        stored = yield from policy(core, name)
        if stored is not None and stored.match == match and stored.limit == limit and set(stored.override) == set(words):
            return stored
        raise OutcomeUnknown(f"{doubt}; asked again, the answer was: {error.detail}") from error


def delete_policy(core: Core, name: str, if_revision: Optional[int]) -> Flow[bool]:
    """Deletes a policy; whether there was one to delete."""
    request = Request("DELETE", path("policies", _name(name)), None, _if_revision(if_revision))

    def read(answer: Mapping[str, Any], _attempts: Attempts) -> bool:
        return bool(answer["deleted"])

    try:
        told = yield from ask(core, request, Twice.REPEATABLE, read, patience_ns=_patience(core))
        return told.value
    except Refused as error:
        if error.code == "no_policy":
            # Gone is what was wanted; where an attempt was lost, that one may have done it.
            return _doubt(error) is not None
        doubt = _doubt(error)
        if doubt is None:
            raise
        raise OutcomeUnknown(f"{doubt}; asked again, the answer was: {error.detail}") from error


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"the name of a policy is a str, not {type(name).__name__}")
    return name


def _if_revision(revision: Optional[int]) -> Tuple[Tuple[str, str], ...]:
    if revision is None:
        return ()
    if isinstance(revision, bool) or not isinstance(revision, int) or revision < 0:
        raise TypeError("a revision is a whole number")
    return (("if-match", f'"{revision}"'),)


def _doubt(error: QuorateError) -> Optional[str]:
    return error.doubt if error.code in _BY_STATE else None
