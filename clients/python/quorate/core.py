"""What the clients share: the state of one client, and how one question is put to the nodes.

Invariants
- A request that may have been applied is sent again only where twice means the same as once: an acquire under its request id
  (every one has one), a change of a policy, a release.
- Doubt sticks: once an attempt was lost on the way, "certainly not granted" is never said of the whole again.
- The instant of the first send is kept over all attempts under one request id.
"""

from __future__ import annotations

import enum
import json
import random
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Generic, Iterable, Mapping, Optional, TypeVar, Union

from .counters import Counters
from .denials import Denials
from .effects import Flow, Reply, Send, Sleep
from .errors import OutcomeUnknown, QuorateError, Unavailable
from .http1 import Request
from .judge import Again, Final, Settled, judge
from .limit import Limit
from .line import Event, Lines
from .local import LocalLimiter
from .nodes import Nodes
from .options import Options
from .permit import NS
from .roundtrip import RoundTrip

T = TypeVar("T")

#: First and longest pause after all nodes have turned a request away: elections take about a second, and nobody should sleep
#: through the end of one.
PAUSE_NS_MIN = 50_000_000
PAUSE_NS_MAX = 500_000_000
#: Rounds in which nobody even took the connection before giving up: one more than the first, for a node that is just being
#: restarted.
SILENT_ROUNDS_MAX = 2
#: How long an interrupted call tries to give back what it holds.
GIVE_BACK_NS = 3 * NS
_LIMITS_KNOWN_MAX = 4096


class Twice(enum.Enum):
    """What asking does, and so what may be said after an attempt was lost."""

    #: Nothing: never in doubt.
    NOTHING = 1
    #: Takes a permit under an id: the same permit again.
    PERMIT = 2
    #: The same whether it is applied once or twice.
    REPEATABLE = 3


class Core:
    """The state of one client. Every part has a lock of its own; none is held while anything waits."""

    def __init__(
        self,
        nodes: Union[str, Iterable[str]],
        options: Options,
        new_event: Callable[[], Event],
        *,
        now: Callable[[], int] = time.monotonic_ns,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self.options = options
        self.now = now
        self.rand = rand
        self.new_event = new_event
        self.nodes = Nodes(nodes, now)
        self.counters = Counters()
        self.denials = Denials()
        self.lines = Lines()
        self.round_trip = RoundTrip()
        self.local = LocalLimiter(options.local_fraction or 1.0, rand)
        #: Limits as the cluster last named them, for the local limiter where requests bring none.
        self.limits: "OrderedDict[str, Limit]" = OrderedDict()
        #: In a degraded mode: why the cluster is done without, and the instant before which it is not asked again.
        self.down: Optional[QuorateError] = None
        self.probe_at_ns = 0

    def remember_limit(self, key: str, limit: Optional[Limit]) -> None:
        """What the cluster says the limit of a key is. Only a degraded mode ever uses it."""
        if limit is not None and self.options.on_unavailable == "local":
            self.limits[key] = limit
            while len(self.limits) > _LIMITS_KNOWN_MAX:
                self.limits.popitem(last=False)

    def after_fork(self) -> None:
        """In a child process: locks that threads of the parent held are nobody's, and nobody waits in line."""
        for part in (self.nodes, self.counters, self.denials, self.lines, self.round_trip, self.local):
            part.renew_locks()


@dataclass(frozen=True)
class Told(Generic[T]):
    """What came of one question."""

    value: T
    #: How an earlier attempt was lost that may have been applied.
    doubt: Optional[str]
    #: The interruption that came meanwhile: give back what this is, then raise it.
    stop: Optional[BaseException]


@dataclass
class Attempts:
    """How the attempts of one question went, for whoever reads its answer."""

    #: How many may have reached a node.
    sends: int = 0
    first_sent_ns: int = 0
    received_ns: int = 0


def ask(
    core: Core,
    request: Request,
    twice: Twice,
    read: Callable[[Mapping[str, Any], Attempts], T],
    *,
    patience_ns: int,
    room_until_ns: Optional[int] = None,
    request_id: Optional[str] = None,
) -> Flow[Told[T]]:
    """Puts one question to the nodes in turn until one settles it or patience runs out.

    Waiting for a connection to come free is not the cluster's fault and counts on its own: until `room_until_ns`.
    """
    deadline = core.now() + patience_ns
    doubt: Optional[str] = None
    stop: Optional[BaseException] = None
    last = Again("no node was asked", in_doubt=False)
    attempts, asked, silent_rounds, pause = Attempts(), 0, 0, PAUSE_NS_MIN

    def gave_up() -> BaseException:
        if stop is not None:
            return stop
        if doubt is None or twice is Twice.NOTHING:
            core.counters.count("unavailable")
            return Unavailable(last.detail, problem=last.problem)
        core.counters.count("outcome_unknown")
        return OutcomeUnknown(doubt, request_id=request_id, problem=last.problem)

    while True:
        heard = False
        for node in core.nodes.in_turn():
            left = deadline - core.now()
            if left <= 0:
                raise gave_up()
            timeout = min(left, int(core.options.attempt_timeout * NS))
            try:
                reply: Reply = yield Send(node, request, timeout, room_until_ns)
            except GeneratorExit:
                raise
            except BaseException as error:
                # Interrupted with nothing of this attempt sent. An earlier one may have taken a permit: find out.
                if doubt is None or twice is not Twice.PERMIT or stop is not None:
                    raise
                stop, deadline = error, core.now() + GIVE_BACK_NS
                continue
            deadline += reply.queued_ns
            if reply.no_room:
                last = Again(reply.why, in_doubt=False)
                raise gave_up()
            if reply.stop is not None and stop is None:
                stop, deadline = reply.stop, core.now() + GIVE_BACK_NS
            asked += 1
            if reply.sent_ns is not None:
                heard = True
                core.counters.count("requests")
                attempts.sends += 1
                if attempts.sends == 1:
                    attempts.first_sent_ns = reply.sent_ns
            if asked > 1:
                core.counters.count("retries")
            attempts.received_ns = reply.received_ns
            if reply.answer is None:
                core.nodes.silent(node, connected=reply.connected)
            else:
                core.nodes.answered(node, reply.answer.status, reply.answer.headers.get("quorate-leader"))
            verdict = judge(node, reply, lambda content: read(content, attempts))
            if isinstance(verdict, Settled):
                if twice is Twice.PERMIT and attempts.sends == 1 and reply.sent_ns is not None:
                    core.round_trip.measured(reply.received_ns - reply.sent_ns)
                if stop is not None and twice is not Twice.PERMIT:
                    raise stop
                return Told(verdict.value, doubt, stop)
            if isinstance(verdict, Final):
                raise stop or _with_doubt(verdict.error, doubt)
            if verdict.in_doubt:
                doubt = verdict.detail
            last = verdict
            if stop is not None and (doubt is None or twice is not Twice.PERMIT):
                raise stop
        silent_rounds = 0 if heard else silent_rounds + 1
        if silent_rounds >= SILENT_ROUNDS_MAX and doubt is None:
            raise gave_up()
        hint = pause if last.retry_after_ns is None else last.retry_after_ns
        nap = min(max(hint, PAUSE_NS_MIN), PAUSE_NS_MAX)
        # Workers that lost the same leader do not come back in step.
        nap += int(nap * core.rand() / 4)
        if core.now() + nap >= deadline:
            raise gave_up()
        try:
            yield Sleep(core.now() + nap)
        except GeneratorExit:
            raise
        except BaseException as error:
            if doubt is None or twice is not Twice.PERMIT or stop is not None:
                raise
            stop, deadline = error, core.now() + GIVE_BACK_NS
        pause = min(pause * 2, PAUSE_NS_MAX)


def _with_doubt(error: QuorateError, doubt: Optional[str]) -> QuorateError:
    """The error, with what came before it in view."""
    error.doubt = doubt
    return error


def new_request_id() -> str:
    """128 random bits: nobody else's, without asking anybody; in a forked child as well."""
    return uuid.uuid4().hex


def post(path: str, content: Mapping[str, Any]) -> Request:
    """A request with a JSON body."""
    return Request("POST", path, json.dumps(content, separators=(",", ":"), allow_nan=False).encode("utf-8"))
