"""The decorator: turns a function into one that runs no more often than a limit allows, over all workers together."""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, Literal, Optional, Tuple, TypeVar, Union, cast

from .async_client import AsyncClient
from .default import default_async_client, default_client
from .errors import RateLimited
from .limit import Limit, check_cost, check_key, check_limit
from .permit import Denied, Permit
from .sync_client import Client
from .wanted import until

F = TypeVar("F", bound=Callable[..., Any])

ON_DENIED = ("wait", "raise", "skip")
#: What becomes of a call whose permit is not free.
OnDenied = Literal["wait", "raise", "skip"]


def throttle(
    key: Union[str, Callable[..., str]],
    limit: Optional[Limit] = None,
    *,
    cost: Union[int, Callable[..., int]] = 1,
    on_denied: OnDenied = "wait",
    timeout: Optional[float] = None,
    client: Union[Client, AsyncClient, None] = None,
) -> Callable[[F], F]:
    """A decorator for functions and coroutine functions.

    - `key`: what is limited; a callable gets the arguments of the call and returns the key.
    - `limit`: `"1/6s"` or an object; `None` if a stored policy says it.
    - `cost`: how many permits' worth one call takes; also by a callable.
    - `on_denied`: `"wait"` for the slot; `"raise"` :class:`RateLimited`; `"skip"` the call and return `None`.
    - `timeout`: how long to wait for a slot, in seconds. By default `"wait"` waits as long as it takes, and the others not at all.
      With `"wait"`, :class:`Timeout` is raised when it is over.
    - `client`: a :class:`Client` for functions, an :class:`AsyncClient` for coroutine functions; by default the one that
      :func:`configure` made, or one from the environment variable `QUORATE_NODES`.

    The function starts right after its permit was checked. The lease of a `concurrency` limit is given back when it ends.

    >>> @throttle("github", "1/6s")
    ... def fetch(url): ...
    >>> @throttle(key=lambda user, **_: f"mail:{user}", limit="10/1m", on_denied="skip")
    ... async def remind(user, text=""): ...
    """
    if not callable(key):
        check_key(key)
    if not callable(cost):
        check_cost(cost)
    check_limit(limit)
    until(timeout)
    if on_denied not in ON_DENIED:
        raise ValueError(f"on_denied is one of {', '.join(ON_DENIED)}, not {on_denied!r}")
    at_once = on_denied != "wait" and not timeout

    def wants(args: Tuple[Any, ...], kwargs: Any) -> Tuple[str, int]:
        return (
            check_key(key(*args, **kwargs) if callable(key) else key),
            check_cost(cost(*args, **kwargs) if callable(cost) else cost),
        )

    def decorate(function: F) -> F:
        if not callable(function):
            raise TypeError(f"only functions can be throttled, not {type(function).__name__}")
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            # A call of it only makes the generator: nothing would have started yet.
            raise TypeError("a generator cannot be throttled: throttle what it calls")
        is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            getattr(function, "__call__", None)
        )
        fitting = AsyncClient if is_async else Client
        if client is not None and not isinstance(client, fitting):
            what = "a coroutine function" if is_async else "a function"
            raise TypeError(f"{what} needs a client of type {fitting.__name__}, this one is {type(client).__name__}")

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            at = cast(Client, client or default_client())
            name, price = wants(args, kwargs)
            try:
                if at_once:
                    permit = _now(at.try_acquire(name, limit, cost=price))
                else:
                    permit = at.acquire(name, limit, cost=price, timeout=timeout)
            except RateLimited:
                if on_denied == "skip":
                    return None
                raise
            try:
                return function(*args, **kwargs)
            finally:
                at._end(permit)

        @functools.wraps(function)
        async def call_async(*args: Any, **kwargs: Any) -> Any:
            at = cast(AsyncClient, client or default_async_client())
            name, price = wants(args, kwargs)
            try:
                if at_once:
                    permit = _now(await at.try_acquire(name, limit, cost=price))
                else:
                    permit = await at.acquire(name, limit, cost=price, timeout=timeout)
            except RateLimited:
                if on_denied == "skip":
                    return None
                raise
            try:
                return await function(*args, **kwargs)
            finally:
                await at._end(permit)

        return cast(F, call_async if is_async else call)

    return decorate


def _now(taken: Union[Permit, Denied]) -> Permit:
    if isinstance(taken, Permit):
        return taken
    raise taken.error()
