"""How a permit is got: asked for, waited for, dropped when it is dead, and given back when nobody wants it any more.

Invariants
- A permit leaves here only when its slot has come and its start window is open.
- Whatever ends a wait early, the permit that was waited for is given back first.
- Every request has an id. A new one is taken after every answer, so only attempts that were lost share one.
"""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional, Union

from .core import Attempts, Core, Twice, ask, new_request_id, post
from .degrade import is_down, local_denial, over
from .effects import Flow, Sleep, Turn
from .errors import OutcomeUnknown, RateLimited, Refused, Timeout, Unavailable
from .line import Ticket
from .permit import NS, Denied, Permit, Permits, read_denied
from .release import give_back
from .want import G, Want

#: Permits that may come too late one after the other before something must be wrong with the window.
LATE_MAX = 20
#: A place in flight comes back whenever somebody is done: it is asked for this often at least.
_IN_FLIGHT_NS_MAX = 1 * NS
#: Without a denial cache nobody stays away longer than this: a limit may be raised meanwhile.
_NAP_NS_MAX = 60 * NS
#: Time for a decision, however little time there is for the wait.
_DECISION_NS_MIN = 1 * NS
_WAIT_NS_MAX = 366 * 86_400 * NS


def take(core: Core, wanted: Want[G], until_ns: Optional[int], request_id: Optional[str]) -> Flow[G]:
    """A permit whose slot has come, or the reason why not; `until_ns` is when the wait has to be over."""
    ticket: Optional[Ticket] = None
    denials = late = 0
    #: Nobody decided just now: go on without the cluster, this once without asking whether it is time to try it again.
    without = False
    try:
        while True:
            if ticket is None and core.lines.exists(wanted.name):
                ticket = core.lines.join(wanted.name, core.new_event)
            if ticket is not None:
                if not (yield Turn(ticket, until_ns)):
                    raise _timeout(wanted, "others of this client still wait for the same key")
                if ticket.error is not None:
                    # Those in front asked for all. Nothing of this call was sent, so certainly nothing was granted.
                    told = Unavailable(ticket.error.detail, problem=ticket.error.problem)
                    ticket = None
                    core.counters.count("unavailable")
                    if not over(core, told):
                        raise told
                    without = True
            if core.options.denial_cache:
                held = core.denials.denied(wanted.name, core.now(), now_only=False)
                if held is not None:
                    core.counters.count("denials_cached")
                    left = {**held[1], "retry_after_ms": max(0, held[0] - core.now()) / 1e6}
                    yield from _stay_away(core, wanted, held[0], until_ns, left, 1)
                    continue
            probing = core.down is not None
            if without or is_down(core):
                without = False
                permit_or_slot = wanted.without_cluster(core)
                if not isinstance(permit_or_slot, int):
                    if ticket is not None:
                        core.lines.leave(ticket, granted=True)
                    return permit_or_slot
                if until_ns is not None and permit_or_slot > until_ns:
                    raise _as_timeout(local_denial(core, wanted.key, permit_or_slot))
                if ticket is None:
                    ticket = core.lines.join(wanted.name, core.new_event)
                if not ticket.called:
                    continue
                # No longer than until the cluster is tried again: it may be back before the slot comes.
                yield Sleep(max(core.now(), min(permit_or_slot, core.probe_at_ns)))
                continue
            if probing and ticket is not None:
                # Those behind do not wait for whoever tries the cluster.
                core.lines.leave(ticket)
                ticket = None
            try:
                permit = yield from _once(core, wanted, "client", until_ns, request_id)
            except Timeout:
                raise
            except RateLimited as error:
                denials += 1
                problem = error.problem or {}
                until = _denied_until(core, wanted, problem)
                if ticket is None:
                    ticket = core.lines.join(wanted.name, core.new_event)
                # Who comes to the end of the time allowed leaves; the others stay in line.
                core.lines.denied(ticket, core.new_event)
                yield from _stay_away(core, wanted, until, until_ns, problem, denials)
                continue
            except Refused as error:
                if error.code != "expired":
                    raise
                permit = None
            except (Unavailable, OutcomeUnknown) as error:
                if ticket is not None:
                    core.lines.leave(ticket)
                    ticket = None
                    core.lines.fail(wanted.name, error)
                if not over(core, error):
                    raise
                without = True
                continue
            finally:
                request_id = None
            core.down = None
            if ticket is not None:
                core.lines.leave(ticket, granted=True)
                ticket = None
            if permit is not None and (yield from _wait_for(core, wanted, permit, until_ns)):
                core.counters.count("granted")
                return permit
            core.counters.count("dropped")
            late += 1
            if late >= LATE_MAX:
                detail = f"{late} permits in a row came too late: the start window is too short for the way to the cluster"
                raise Timeout(detail, key=wanted.key)
    finally:
        if ticket is not None:
            core.lines.leave(ticket)


def try_take(core: Core, wanted: Want[G], request_id: Optional[str]) -> Flow[Union[G, Denied]]:
    """A permit that is free now, or the denial of one. Waits for nothing but the answer."""
    if core.options.denial_cache:
        held = core.denials.denied(wanted.name, core.now(), now_only=True)
        if held is not None:
            core.counters.count("denials_cached")
            left = max(0, held[0] - core.now()) / 1e6
            return read_denied({**held[1], "retry_after_ms": left}, wanted.key, cached=True)
    if is_down(core):
        return _degraded_now(core, wanted)
    for _ in range(LATE_MAX):
        try:
            permit = yield from _once(core, wanted, "none", core.now(), request_id)
        except Timeout:
            raise
        except RateLimited as error:
            problem = error.problem or {}
            _denied_until(core, wanted, problem)
            return read_denied(problem, wanted.key)
        except Refused as error:
            if error.code != "expired":
                raise
            permit = None
        except (Unavailable, OutcomeUnknown) as error:
            if not over(core, error):
                raise
            return _degraded_now(core, wanted)
        request_id = None
        core.down = None
        if permit is None or permit.is_dead(core.now()):
            core.counters.count("dropped")
            continue
        wait = permit.start_at_ns - core.now()
        if wait > 0:
            # Only after a change of the leader: the slot was free by a clock that was ahead of this one.
            yield from give_back(core, permit)
            return Denied(wanted.key, "the slot has not come yet", "not_free_now", wait / NS)
        core.counters.count("granted")
        return permit
    return Denied(wanted.key, f"{LATE_MAX} permits in a row came too late to be used", "not_free_now")


def wait_for(core: Core, permit: Union[Permit, Permits]) -> Flow[bool]:
    """Sleeps until the slot; whether the permit is alive then. An interruption gives it back."""
    if permit.start_at_ns > core.now():
        try:
            yield Sleep(permit.start_at_ns)
        except GeneratorExit:
            raise
        except BaseException:
            yield from give_back(core, permit)
            raise
    return not permit.is_dead(core.now())


def _once(core: Core, wanted: Want[G], wait: str, until_ns: Optional[int], given_id: Optional[str]) -> Flow[G]:
    """One question for one permit, put under one id until it is settled."""
    request_id = given_id or new_request_id()
    content = {**wanted.content(), "request_id": request_id}
    if wanted.worker is not None:
        content["worker"] = wanted.worker
    patience = int(core.options.timeout * NS)
    if core.options.on_unavailable != "closed":
        patience = min(patience, int(core.options.degrade_after * NS))
    if wait == "none":
        content["wait"] = "none"
    else:
        leads = [core.lead_ms(wanted.name), wanted.lead_ms_max()]
        if until_ns is not None:
            allowed = min(max(0, until_ns - core.now()), _WAIT_NS_MAX)
            content["max_wait_ms"] = math.floor(allowed / 1e3) / 1e3
            patience = min(patience, max(allowed, _DECISION_NS_MIN))
            leads.append(content["max_wait_ms"])
        lead = None if leads[0] is None else min(most for most in leads if most is not None)
        if lead:
            content["lead_ms"] = lead

    def read(answer: Mapping[str, Any], attempts: Attempts) -> G:
        return wanted.read(answer, attempts, request_id, given_id is None)

    # Who waits for a slot as long as it takes also waits for a connection.
    room = None if until_ns is None else max(until_ns, core.now() + patience)
    while True:
        try:
            told = yield from ask(
                core,
                post("/acquire", content),
                Twice.PERMIT,
                read,
                patience_ns=patience,
                room_until_ns=room,
                request_ids=(request_id,),
            )
            break
        except Refused as error:
            if error.code != "never" or content.pop("lead_ms", None) is None:
                raise
            # Perhaps only for the lead, which was this client's idea. Nothing is remembered of a refusal, so the id stays.
            core.without_lead(wanted.name)
    wanted.remember(core, told.value)
    if told.stop is not None:
        yield from give_back(core, told.value)
        raise told.stop
    return told.value


def _wait_for(core: Core, wanted: Want[G], permit: G, until_ns: Optional[int]) -> Flow[bool]:
    """Sleeps until the slot; whether the permit can be used then."""
    now = core.now()
    if until_ns is not None and permit.start_at_ns > max(until_ns, now):
        yield from give_back(core, permit)
        raise _timeout(wanted, "the slot comes too late")
    if permit.is_dead(permit.start_at_ns):
        # The way here took longer than the window. If its slot is still ahead, somebody else may have it.
        if permit.start_at_ns > now:
            yield from give_back(core, permit)
        return False
    return (yield from wait_for(core, permit))


def _denied_until(core: Core, wanted: Want[G], problem: Mapping[str, Any]) -> int:
    """Counts and remembers a denial; the instant from which asking again makes sense."""
    core.counters.count("denied")
    core.down = None
    retry_after = read_denied(problem, wanted.key).retry_after
    nap = 50_000_000 if retry_after is None else math.ceil(retry_after * NS)
    if problem.get("reason") == "in_flight_full":
        nap = min(nap, _IN_FLIGHT_NS_MAX)
    elif not core.options.denial_cache:
        nap = min(nap, _NAP_NS_MAX)
    until = core.now() + nap
    if core.options.denial_cache:
        core.denials.remember(wanted.name, problem, until)
    return until


def _stay_away(
    core: Core, wanted: Want[G], from_ns: int, until_ns: Optional[int], problem: Mapping[str, Any], times: int
) -> Flow[None]:
    """Sleeps until a denial is over, and a little longer, so that those who were denied together do not ask together."""
    denied = read_denied(problem, wanted.key)
    hopeless = until_ns is not None and (from_ns > until_ns or denied.reason == "would_wait_too_long")
    if hopeless:
        raise Timeout(
            f"no permit in time: {denied.detail}",
            key=wanted.key,
            reason=denied.reason,
            retry_after=denied.retry_after,
            denied_by=denied.denied_by,
            problem=problem,
        )
    nap = max(0, from_ns - core.now())
    spread = (min(nap, NS) // 4 + 2_000_000) * min(times, 4)
    at = from_ns + int(spread * core.rand())
    yield Sleep(at if until_ns is None else min(at, until_ns))


def _degraded_now(core: Core, wanted: Want[G]) -> Union[G, Denied]:
    taken = wanted.without_cluster(core)
    return local_denial(core, wanted.key, taken) if isinstance(taken, int) else taken


def _as_timeout(denied: Denied) -> Timeout:
    return Timeout(denied.detail, key=denied.key, reason=denied.reason, retry_after=denied.retry_after)


def _timeout(wanted: Want[G], why: str) -> Timeout:
    return Timeout(f"no permit of {wanted.key!r} in time: {why}", key=wanted.key)
