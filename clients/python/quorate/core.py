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
import threading
import time
import uuid
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Callable, Generic, Iterable, Mapping, Optional, Tuple, TypeVar, Union

from .counters import Counters
from .denials import Denials
from .effects import Flow, Reply, Send, Sleep
from .errors import OutcomeUnknown, QuorateError, Timeout, Unavailable
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
#: How long an interrupted thread tries to give back what it holds: somebody waits for it to end.
GIVE_BACK_NS = 3 * NS
#: The shortest attempt, however many nodes are still to be asked; and what has to be left for another one to be begun: one that
#: is cut off turns "certainly not granted" into doubt.
ATTEMPT_NS_MIN = 200_000_000
BEGIN_NS_MIN = 100_000_000
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
        give_back_ns: int = GIVE_BACK_NS,
        now: Callable[[], int] = time.monotonic_ns,
        rand: Callable[[], float] = random.random,
    ) -> None:
        self.options = options
        self.now = now
        self.rand = rand
        self.new_event = new_event
        #: How long to try to give back what nobody waits for any more.
        self.give_back_ns = give_back_ns
        self.nodes = Nodes(nodes, now)
        self.counters = Counters()
        self.denials = Denials()
        self.lines = Lines()
        self.round_trip = RoundTrip()
        self.local = LocalLimiter(options.local_fraction or 1.0, rand)
        self._lock = threading.Lock()
        #: Limits as the cluster last named them, and whether a stored policy did, for the local limiter.
        self._limits: "OrderedDict[str, Tuple[Limit, bool]]" = OrderedDict()
        #: What was refused for its lead alone: asked for without one.
        self._leadless: "OrderedDict[object, None]" = OrderedDict()
        #: In a degraded mode: why the cluster is done without, and the instant before which it is not asked again.
        self.down: Optional[QuorateError] = None
        self.probe_at_ns = 0

    def remember_limit(self, key: str, limit: Optional[Limit], policy: Optional[str]) -> None:
        """What the cluster says the limit of a key is. Only a degraded mode ever uses it."""
        if limit is not None and self.options.on_unavailable == "local":
            with self._lock:
                self._limits[key] = limit, policy is not None
                while len(self._limits) > _LIMITS_KNOWN_MAX:
                    self._limits.popitem(last=False)

    def limit_of(self, key: str, inline: Optional[Limit]) -> Optional[Limit]:
        """The limit that the cluster would decide by, as far as is known: a stored policy's, or else the request's own."""
        with self._lock:
            named, by_policy = self._limits.get(key, (None, False))
        return named if by_policy or inline is None else inline

    def without_lead(self, name: object) -> None:
        """From now on this is asked for without a lead."""
        with self._lock:
            self._leadless[name] = None
            while len(self._leadless) > _LIMITS_KNOWN_MAX:
                self._leadless.popitem(last=False)

    def lead_ms(self, name: object) -> Optional[float]:
        """The lead to ask with."""
        with self._lock:
            if name in self._leadless:
                return None
        return self.round_trip.lead_ms()

    def after_fork(self) -> None:
        """In a child process: locks that threads of the parent held are nobody's, and nobody waits in line."""
        self._lock = threading.Lock()
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
    request_ids: Tuple[str, ...] = (),
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
        return OutcomeUnknown(doubt, request_ids=request_ids, problem=last.problem)

    while True:
        heard = False
        hold = 0
        nodes = core.nodes.in_turn()
        for place, node in enumerate(nodes):
            left = deadline - core.now()
            if left <= 0 or (asked and doubt is None and left < BEGIN_NS_MIN):
                raise gave_up()
            # No node may use up the time of those that come after it.
            share = max(left // (len(nodes) - place), ATTEMPT_NS_MIN)
            timeout = min(left, share, int(core.options.attempt_timeout * NS))
            try:
                reply: Reply = yield Send(node, request, timeout, room_until_ns)
            except GeneratorExit:
                raise
            except BaseException as error:
                # Interrupted with nothing of this attempt sent. An earlier one may have taken a permit: find out.
                if doubt is None or twice is not Twice.PERMIT or stop is not None:
                    raise
                stop, deadline = error, core.now() + core.give_back_ns
                continue
            deadline += reply.queued_ns
            if reply.no_room:
                last = Again(reply.why, in_doubt=False)
                if stop is None and doubt is None:
                    # The fault is this client's own, not the cluster's: nothing degrades for it.
                    raise Timeout(f"no connection to ask on came free in time: {reply.why}")
                raise gave_up()
            if reply.stop is not None and stop is None:
                stop, deadline = reply.stop, core.now() + core.give_back_ns
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
                core.nodes.silent(node)
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
            if verdict.hold and verdict.retry_after_ns is not None:
                hold = max(hold, verdict.retry_after_ns)
            if stop is not None and (doubt is None or twice is not Twice.PERMIT):
                raise stop
        silent_rounds = 0 if heard else silent_rounds + 1
        if silent_rounds >= SILENT_ROUNDS_MAX and doubt is None:
            raise gave_up()
        hint = pause if last.retry_after_ns is None else last.retry_after_ns
        # Who is overloaded says how long to stay away, and is left alone for as long.
        nap = max(min(max(hint, PAUSE_NS_MIN), PAUSE_NS_MAX), hold)
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
            stop, deadline = error, core.now() + core.give_back_ns
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
