"""The client for event loops: `Client`, with `await`.

A cancelled wait gives back what it held: the cancelled task itself waits for that, but no longer than `GIVE_BACK_PATIENCE`;
then it goes on in the background, and `aclose` waits for it.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from types import TracebackType
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Coroutine,
    Dict,
    Iterable,
    List,
    Mapping,
    Optional,
    Set,
    Type,
    TypeVar,
    Union,
)

from . import acquire as _acquire
from . import batch as _batch
from . import peek as _peek
from . import policies as _policies
from . import release as _release
from .async_wire import AsyncWire, Connection, Outcome
from .batch import Ask, Result
from .core import Core
from .counters import Stats
from .effects import Effect, Flow, Reply, Send, Sleep
from .errors import QuorateError
from .limit import Limit
from .options import OnUnavailable, Options
from .peek import KeyState
from .permit import NS, Denied, Permit, Permits
from .policies import Policy
from .release import Released, Renewed
from .limit import check_request_id
from .wanted import check_number, check_permit, until, wanted, wanted_all

if TYPE_CHECKING:
    from .throttle import OnDenied

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

#: How long a cancelled task waits for what it gives back, in seconds.
GIVE_BACK_PATIENCE = 1.0

_clients: "weakref.WeakSet[AsyncClient]" = weakref.WeakSet()


class LoopEvent:
    """An event that is waited for on one loop and may be set from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._future: "asyncio.Future[None]" = self._loop.create_future()

    def set(self) -> None:
        """Wakes whoever waits."""
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            # Its loop is closed, and whoever waited there is gone with it.
            pass

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, timeout: Optional[float]) -> bool:
        """Whether it was set in time."""
        if not self._future.done():
            await asyncio.wait({self._future}, timeout=timeout)
        return self._future.done()


class AsyncClient:
    """A client of one cluster for asyncio; method by method the same as :class:`Client`.

    It may be made anywhere and used on any loop, also on several: each loop has connections of its own.
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
        # Given back in the background, so it may take as long as any other question.
        self._core = Core(nodes, options, LoopEvent, give_back_ns=int(options.timeout * NS))
        #: Loops may run on several threads.
        self._lock = threading.Lock()
        self._wires: Dict[asyncio.AbstractEventLoop, AsyncWire] = {}
        self._opened_before = 0
        self._returning: "Set[asyncio.Task[None]]" = set()
        _clients.add(self)

    # Permits.

    async def acquire(
        self,
        key: str,
        limit: Optional[Limit] = None,
        *,
        cost: int = 1,
        timeout: Optional[float] = None,
        request_id: Optional[str] = None,
    ) -> Permit:
        """Waits for a permit: see :meth:`Client.acquire`. If the task is cancelled, the permit is given back."""
        want = wanted(self._core, key, limit, cost)
        return await self._run(_acquire.take(self._core, want, until(timeout), check_request_id(request_id)))

    async def try_acquire(
        self, key: str, limit: Optional[Limit] = None, *, cost: int = 1, request_id: Optional[str] = None
    ) -> Union[Permit, Denied]:
        """Takes a permit only if it is free now: see :meth:`Client.try_acquire`."""
        want = wanted(self._core, key, limit, cost)
        return await self._run(_acquire.try_take(self._core, want, check_request_id(request_id)))

    async def acquire_all(
        self,
        requests: Iterable[Union[Ask, Mapping[str, Any]]],
        *,
        timeout: Optional[float] = None,
        request_id: Optional[str] = None,
    ) -> Permits:
        """Waits for permits of several keys in one decision: see :meth:`Client.acquire_all`."""
        want = wanted_all(self._core, requests)
        return await self._run(_acquire.take(self._core, want, until(timeout), check_request_id(request_id)))

    async def try_acquire_all(
        self, requests: Iterable[Union[Ask, Mapping[str, Any]]], *, request_id: Optional[str] = None
    ) -> Union[Permits, Denied]:
        """Takes permits of all keys only if all are free now: see :meth:`Client.try_acquire_all`."""
        want = wanted_all(self._core, requests)
        return await self._run(_acquire.try_take(self._core, want, check_request_id(request_id)))

    def reserve(
        self, key: str, limit: Optional[Limit] = None, *, cost: int = 1, timeout: Optional[float] = None
    ) -> "AsyncReservation":
        """An asynchronous context manager: see :meth:`Client.reserve`."""
        wanted(self._core, key, limit, cost), until(timeout)
        return AsyncReservation(self, key, limit, cost, timeout)

    async def wait(self, permit: Union[Permit, Permits]) -> bool:
        """Sleeps until a permit may be used: see :meth:`Client.wait`."""
        return await self._run(_acquire.wait_for(self._core, check_permit(permit)))

    async def release(self, permit: Union[Permit, Permits, str], number: Optional[int] = None) -> Released:
        """Gives a permit back: see :meth:`Client.release`."""
        if isinstance(permit, Permits):
            if number is not None:
                raise TypeError("permits know their numbers")
            return await self._run(_release.release_all(self._core, permit))
        key, number = check_number(permit, number)
        if number is None:
            return Released(False, "the cluster did not grant it")
        return await self._run(_release.release(self._core, key, number))

    async def renew(self, permit: Union[Permit, str], number: Optional[int] = None) -> Renewed:
        """Extends a lease: see :meth:`Client.renew`."""
        key, number = check_number(permit, number)
        if number is None:
            raise ValueError("the cluster did not grant this permit")
        return await self._run(_release.renew(self._core, key, number))

    async def peek(self, key: str) -> Optional[KeyState]:
        """Looks at a key: see :meth:`Client.peek`."""
        return await self._run(_peek.peek(self._core, wanted(self._core, key, None, 1).key))

    async def batch(self, requests: Iterable[Union[Ask, Mapping[str, Any]]], *, atomic: bool = False) -> List[Result]:
        """Many requests in one call: see :meth:`Client.batch`."""
        return await self._run(_batch.batch(self._core, requests, atomic))

    # Policies.

    async def policies(self) -> List[Policy]:
        """All stored policies, sorted by name."""
        return await self._run(_policies.policies(self._core))

    async def policy(self, name: str) -> Optional[Policy]:
        """One stored policy, or `None`."""
        return await self._run(_policies.policy(self._core, name))

    async def put_policy(
        self,
        name: str,
        match: str,
        limit: Limit,
        *,
        override: Iterable[str] = (),
        if_revision: Optional[int] = None,
        if_absent: bool = False,
    ) -> Policy:
        """Makes a policy what it shall be: see :meth:`Client.put_policy`."""
        flow = _policies.put_policy(self._core, name, match, limit, override, if_revision, if_absent)
        return await self._run(flow)

    async def delete_policy(self, name: str, *, if_revision: Optional[int] = None) -> bool:
        """Deletes a policy; `False` if there was none."""
        return await self._run(_policies.delete_policy(self._core, name, if_revision))

    # The client itself.

    @property
    def stats(self) -> Stats:
        """What this client has done so far."""
        stats = self._core.counters.snapshot()
        with self._lock:
            stats.connections = self._opened_before + sum(wire.opened for wire in self._wires.values())
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

    async def aclose(self) -> None:
        """Waits until everything that was cancelled has been given back, and closes the connections of this loop."""
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                pending = [task for task in self._returning if task.get_loop() is loop]
            if not pending:
                break
            await asyncio.wait(pending)
        self._wire().close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.aclose()

    # The driver.

    async def _run(self, flow: Flow[T]) -> T:
        """Carries out a flow. When the task is cancelled, what the flow still has to do is done in a task of its own."""
        try:
            effect = next(flow)
            while True:
                try:
                    result = await self._perform(effect)
                except asyncio.CancelledError as stop:
                    # Comes straight back if nothing is held.
                    effect = flow.throw(stop)
                    await self._return(self._finish(flow, effect))
                    raise
                except _Cut as cut:
                    await self._return(self._after_cut(flow, cut))
                    raise cut.stop from None
                except BaseException as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as done:
            value: T = done.value
            return value

    async def _end(self, permit: Permit) -> None:
        """The work is done: a lease is given back. If that fails, it ends by itself."""
        if permit.is_lease:
            # In a task of its own: whoever is cancelled now still gives it back.
            await self._return(self._run(_release.give_back(self._core, permit)))

    async def _after_cut(self, flow: Flow[Any], cut: "_Cut") -> None:
        """The request was sent before the task was cancelled: its answer says whether there is something to give back."""
        try:
            answer, why, received = await asyncio.shield(cut.outcome)
        except asyncio.CancelledError:
            # Nobody reads the answer any more, so nobody may use the connection: the next one would take it for its own.
            cut.connection.abort()
            flow.close()
            raise
        try:
            effect = flow.send(Reply(answer, why, cut.sent_ns, received, cut.queued_ns, stop=cut.stop))
        except (asyncio.CancelledError, QuorateError):
            return
        await self._finish(flow, effect)

    async def _finish(self, flow: Flow[Any], effect: Effect) -> None:
        """Lets an interrupted flow give back what it holds; it ends with the interruption."""
        try:
            while True:
                try:
                    result = await self._perform(effect)
                except asyncio.CancelledError:
                    flow.close()
                    raise
                except _Cut as cut:
                    flow.close()
                    raise cut.stop from None
                except BaseException as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except (asyncio.CancelledError, QuorateError, StopIteration):
            return

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Send):
            return await self._exchange(effect)
        if isinstance(effect, Sleep):
            return await self._sleep(effect.until_ns)
        left = None if effect.until_ns is None else max(0, effect.until_ns - time.monotonic_ns()) / NS
        event = effect.ticket.event
        assert isinstance(event, LoopEvent)
        return await event.wait(left)

    async def _exchange(self, send: Send) -> Reply:
        wire = self._wire()
        begun = time.monotonic_ns()
        if not await wire.enter(send.room_until_ns):
            return Reply(None, f"all {self._core.options.max_connections} connections stayed in use", no_room=True)
        queued = time.monotonic_ns() - begun
        try:
            found = await wire.connection(send)
        except BaseException:
            wire.leave()
            raise
        if isinstance(found, Reply):
            wire.leave()
            return Reply(None, found.why, queued_ns=queued)
        sent = time.monotonic_ns()
        outcome = found.start(send.request.encode(send.node[len("http://") :]), send.timeout_ns)

        def done(_: "asyncio.Future[Outcome]") -> None:
            wire.rest(send.node, found)
            wire.leave()

        outcome.add_done_callback(done)
        try:
            answer, why, received = await asyncio.shield(outcome)
        except asyncio.CancelledError as stop:
            raise _Cut(stop, outcome, found, sent, queued) from None
        return Reply(answer, why, sent, received, queued)

    @staticmethod
    async def _sleep(until_ns: int) -> None:
        while True:
            left = until_ns - time.monotonic_ns()
            if left <= 0:
                return
            await asyncio.sleep(min(left / NS, 86_400.0))

    async def _return(self, work: "Coroutine[Any, Any, None]") -> None:
        """Gives back in a task of its own, and waits for it a while."""
        task = asyncio.get_running_loop().create_task(work)
        with self._lock:
            self._returning.add(task)
        task.add_done_callback(self._returned)
        # A second cancellation ends this wait, not the task.
        await asyncio.wait({task}, timeout=GIVE_BACK_PATIENCE)

    def _returned(self, task: "asyncio.Task[None]") -> None:
        with self._lock:
            self._returning.discard(task)
        if not task.cancelled():
            # Whatever it is, nobody waits for it; read, so that the loop does not complain.
            task.exception()

    def _wire(self) -> AsyncWire:
        loop = asyncio.get_running_loop()
        with self._lock:
            wire = self._wires.get(loop)
            if wire is None:
                self._forget_closed_loops()
                wire = self._wires[loop] = AsyncWire(self._core.options.max_connections)
        return wire

    def _forget_closed_loops(self) -> None:
        """A loop that has ended, `asyncio.run` makes one each time, leaves its connections behind: nobody else closes them."""
        for loop in [loop for loop in self._wires if loop.is_closed()]:
            wire = self._wires.pop(loop)
            self._opened_before += wire.opened
            wire.abandon()
        self._returning = {task for task in self._returning if not task.get_loop().is_closed()}

    def _after_fork(self) -> None:
        self._core.after_fork()
        self._lock = threading.Lock()
        for wire in self._wires.values():
            wire.abandon()
        self._opened_before = 0
        self._wires = {}
        # The parent's tasks stay as they are: they belong to a loop that does not run here.
        self._returning = set()


class _Cut(Exception):
    """The task was cancelled after the first byte had been sent; the exchange goes on without it."""

    def __init__(
        self,
        stop: asyncio.CancelledError,
        outcome: "asyncio.Future[Outcome]",
        connection: Connection,
        sent_ns: int,
        queued_ns: int,
    ) -> None:
        super().__init__()
        self.stop = stop
        self.outcome = outcome
        self.connection = connection
        self.sent_ns = sent_ns
        self.queued_ns = queued_ns


class AsyncReservation:
    """What :meth:`AsyncClient.reserve` returns. Each use is a new request."""

    def __init__(
        self, client: AsyncClient, key: str, limit: Optional[Limit], cost: int, timeout: Optional[float]
    ) -> None:
        self._client = client
        self._wants = (key, limit, cost, timeout)
        self._held: "Dict[Optional[asyncio.Task[Any]], List[Permit]]" = {}

    async def __aenter__(self) -> Permit:
        key, limit, cost, timeout = self._wants
        permit = await self._client.acquire(key, limit, cost=cost, timeout=timeout)
        self._held.setdefault(asyncio.current_task(), []).append(permit)
        return permit

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        held = self._held[asyncio.current_task()]
        permit = held.pop()
        if not held:
            del self._held[asyncio.current_task()]
        await self._client._end(permit)


def _after_fork_in_child() -> None:
    for client in list(_clients):
        client._after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
