"""The client for threads."""

from __future__ import annotations

import os
import threading
import time
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Iterable, List, Mapping, Optional, Type, TypeVar, Union

from . import acquire as _acquire
from . import batch as _batch
from . import peek as _peek
from . import policies as _policies
from . import release as _release
from .batch import Ask, Result
from .core import Core
from .counters import Stats
from .effects import Effect, Flow, Send, Sleep
from .limit import Limit
from .options import OnUnavailable, Options
from .peek import KeyState
from .permit import NS, Denied, Permit, Permits
from .policies import Policy
from .release import Released, Renewed
from .sync_wire import SyncWire
from .limit import check_request_id
from .wanted import check_number, check_permit, until, wanted, wanted_all

if TYPE_CHECKING:
    from .throttle import OnDenied

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_clients: "weakref.WeakSet[Client]" = weakref.WeakSet()


class Client:
    """A client of one cluster. Safe to share among threads, and usable in a child after `os.fork()`.

    `nodes` are URLs such as `http://127.0.0.1:7001`. One is enough, more survive its loss. The settings are those of
    :class:`Options`.

    >>> client = Client(["http://127.0.0.1:7001", "http://127.0.0.1:7002"], timeout=5)
    >>> client.close()
    """

    def __init__(
        self,
        nodes: Union[str, Iterable[str]],
        *,
        timeout: float = 10.0,
        attempt_timeout: float = 3.0,
        on_unavailable: OnUnavailable = "closed",
        local_fraction: Optional[float] = None,
        degrade_after: float = 2.0,
        probe_every: float = 1.0,
        denial_cache: bool = False,
        max_connections: int = 64,
        worker: Optional[str] = None,
    ) -> None:
        options = Options(
            timeout=timeout,
            attempt_timeout=attempt_timeout,
            on_unavailable=on_unavailable,
            local_fraction=local_fraction,
            degrade_after=degrade_after,
            probe_every=probe_every,
            denial_cache=denial_cache,
            max_connections=max_connections,
            worker=worker,
        )
        self._core = Core(nodes, options, threading.Event)
        self._wire = SyncWire(self._core.options.max_connections)
        _clients.add(self)

    # Permits.

    def acquire(
        self,
        key: str,
        limit: Optional[Limit] = None,
        *,
        cost: int = 1,
        timeout: Optional[float] = None,
        request_id: Optional[str] = None,
    ) -> Permit:
        """Waits for a permit, and comes back when it may be used: start at once.

        `timeout` is how long to wait for the slot, in seconds; `None`: as long as it takes. :class:`Timeout` comes as soon as it
        is known that there will be no slot in time. A permit whose start window is over before it can be used is dropped, and
        another one asked for. If the wait is interrupted (Ctrl-C), the permit is given back.
        """
        want = wanted(self._core, key, limit, cost)
        return self._run(_acquire.take(self._core, want, until(timeout), check_request_id(request_id)))

    def try_acquire(
        self, key: str, limit: Optional[Limit] = None, *, cost: int = 1, request_id: Optional[str] = None
    ) -> Union[Permit, Denied]:
        """Takes a permit only if it is free now; waits for nothing but the answer. True if there is one.

        >>> if client.try_acquire("github", "1/6s"):  # doctest: +SKIP
        ...     fetch()
        """
        want = wanted(self._core, key, limit, cost)
        return self._run(_acquire.try_take(self._core, want, check_request_id(request_id)))

    def acquire_all(
        self,
        requests: Iterable[Union[Ask, Mapping[str, Any]]],
        *,
        timeout: Optional[float] = None,
        request_id: Optional[str] = None,
    ) -> Permits:
        """Waits for permits of 2 to 16 keys in one decision: all or none, and one slot for all. Otherwise as :meth:`acquire`.

        >>> both = client.acquire_all([Ask("token", "1/6s"), Ask("host", "10/s")])  # doctest: +SKIP
        """
        want = wanted_all(self._core, requests)
        return self._run(_acquire.take(self._core, want, until(timeout), check_request_id(request_id)))

    def try_acquire_all(
        self, requests: Iterable[Union[Ask, Mapping[str, Any]]], *, request_id: Optional[str] = None
    ) -> Union[Permits, Denied]:
        """Takes permits of all keys only if all are free now; `denied_by` of the denial names a key that is not."""
        want = wanted_all(self._core, requests)
        return self._run(_acquire.try_take(self._core, want, check_request_id(request_id)))

    def reserve(
        self, key: str, limit: Optional[Limit] = None, *, cost: int = 1, timeout: Optional[float] = None
    ) -> "Reservation":
        """A context manager: entering waits as :meth:`acquire` does, and the body runs with the permit.

        If the body never starts, because entering is interrupted, the permit is given back. The lease of a `concurrency` limit is
        given back when the body ends.
        """
        wanted(self._core, key, limit, cost), until(timeout)
        return Reservation(self, key, limit, cost, timeout)

    def wait(self, permit: Union[Permit, Permits]) -> bool:
        """Sleeps until a permit of a :meth:`batch` may be used; `False` if its start window is over: discard it. If the wait is
        interrupted, the permit is given back.
        """
        return self._run(_acquire.wait_for(self._core, check_permit(permit)))

    def release(self, permit: Union[Permit, Permits, str], number: Optional[int] = None) -> Released:
        """Gives a permit back: `release(permit)`, or `release(key, number)`. A slot that has come stays spent: then the
        result is false. A permit that the cluster did not grant (`degraded`) has nothing to give back. Of several permits of one
        decision all are given back; then the result is true if none was left.
        """
        if isinstance(permit, Permits):
            if number is not None:
                raise TypeError("permits know their numbers")
            return self._run(_release.release_all(self._core, permit))
        key, number = check_number(permit, number)
        if number is None:
            return Released(False, "the cluster did not grant it")
        return self._run(_release.release(self._core, key, number))

    def renew(self, permit: Union[Permit, str], number: Optional[int] = None) -> Renewed:
        """Extends the lease of a `concurrency` limit's permit; :class:`Refused` if there is no such lease any more."""
        key, number = check_number(permit, number)
        if number is None:
            raise ValueError("the cluster did not grant this permit")
        return self._run(_release.renew(self._core, key, number))

    def peek(self, key: str) -> Optional[KeyState]:
        """Looks at a key without consuming anything; `None` if nothing is known of it."""
        return self._run(_peek.peek(self._core, wanted(self._core, key, None, 1).key))

    def batch(self, requests: Iterable[Union[Ask, Mapping[str, Any]]], *, atomic: bool = False) -> List[Result]:
        """Up to 1,000 requests in one call; results in their order, each a permit, a denial or an error (not raised).

        With `atomic` all are granted or none: then the refusal is raised. Permits are not waited for: see :meth:`wait`.
        `on_unavailable` has no say here: the error is raised.
        """
        return self._run(_batch.batch(self._core, requests, atomic))

    # Policies.

    def policies(self) -> List[Policy]:
        """All stored policies, sorted by name."""
        return self._run(_policies.policies(self._core))

    def policy(self, name: str) -> Optional[Policy]:
        """One stored policy, or `None`."""
        return self._run(_policies.policy(self._core, name))

    def put_policy(
        self,
        name: str,
        match: str,
        limit: Limit,
        *,
        override: Iterable[str] = (),
        if_revision: Optional[int] = None,
        if_absent: bool = False,
    ) -> Policy:
        """Makes a policy what it shall be, if it has this revision, or is not there, where that is asked for."""
        return self._run(_policies.put_policy(self._core, name, match, limit, override, if_revision, if_absent))

    def delete_policy(self, name: str, *, if_revision: Optional[int] = None) -> bool:
        """Deletes a policy; `False` if there was none."""
        return self._run(_policies.delete_policy(self._core, name, if_revision))

    # The client itself.

    @property
    def stats(self) -> Stats:
        """What this client has done so far."""
        stats = self._core.counters.snapshot()
        stats.connections = self._wire.opened
        return stats

    @property
    def leader(self) -> Optional[str]:
        """Where the leader was last seen."""
        return self._core.nodes.leader

    def throttle(
        self,
        key: Union[str, Callable[..., str]],
        limit: Optional[Limit] = None,
        *,
        cost: Union[int, Callable[..., int]] = 1,
        on_denied: "OnDenied" = "wait",
        timeout: Optional[float] = None,
    ) -> Callable[[F], F]:
        """:func:`throttle` with this client."""
        from .throttle import throttle

        return throttle(key, limit, cost=cost, on_denied=on_denied, timeout=timeout, client=self)

    def close(self) -> None:
        """Closes the connections. Calls after that are a `RuntimeError`."""
        self._wire.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()

    # The driver.

    def _run(self, flow: Flow[T]) -> T:
        """Carries out a flow on this thread."""
        try:
            effect = next(flow)
            while True:
                try:
                    result = self._perform(effect)
                except BaseException as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    def _end(self, permit: Permit) -> None:
        """The work is done: a lease is given back. If that fails, it ends by itself."""
        if permit.is_lease:
            self._run(_release.give_back(self._core, permit))

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return self._wire.exchange(effect)
        if isinstance(effect, Sleep):
            return self._sleep(effect.until_ns)
        left = None if effect.until_ns is None else max(0, effect.until_ns - time.monotonic_ns()) / NS
        event = effect.ticket.event
        assert isinstance(event, threading.Event)
        return event.wait(left)

    @staticmethod
    def _sleep(until_ns: int) -> None:
        while True:
            left = until_ns - time.monotonic_ns()
            if left <= 0:
                return
            time.sleep(min(left / NS, 86_400.0))

    def _after_fork(self) -> None:
        self._core.after_fork()
        self._wire.abandon()
        self._wire = SyncWire(self._core.options.max_connections)


class Reservation:
    """What :meth:`Client.reserve` returns. Each use is a new request."""

    def __init__(
        self, client: Client, key: str, limit: Optional[Limit], cost: int, timeout: Optional[float]
    ) -> None:
        self._client = client
        self._wants = (key, limit, cost, timeout)
        self._local = threading.local()

    def __enter__(self) -> Permit:
        key, limit, cost, timeout = self._wants
        permit = self._client.acquire(key, limit, cost=cost, timeout=timeout)
        held: List[Permit] = getattr(self._local, "held", [])
        self._local.held = [*held, permit]
        return permit

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._client._end(self._local.held.pop())


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
