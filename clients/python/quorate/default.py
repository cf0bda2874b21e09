"""The clients that `@throttle` uses when it is given none."""

from __future__ import annotations

import os
import threading
from typing import Any, Iterable, List, Optional, Union

from .async_client import AsyncClient
from .sync_client import Client

#: Where `quorate up` listens.
NODES = "http://127.0.0.1:7001,http://127.0.0.1:7002,http://127.0.0.1:7003"

_lock = threading.Lock()
_nodes: Union[str, Iterable[str], None] = None
_settings: "dict[str, Any]" = {}
_client: Optional[Client] = None
_async_client: Optional[AsyncClient] = None


def configure(nodes: Union[str, Iterable[str], None] = None, **settings: Any) -> None:
    """Says which cluster `@throttle` uses, with which :class:`Options`, from its next call on.

    Without nodes: those of the environment variable `QUORATE_NODES` (URLs with commas between them), or else those of
    `quorate up` on this machine.
    """
    global _nodes, _settings, _client, _async_client
    named = nodes if nodes is None or isinstance(nodes, str) else list(nodes)
    # Errors now rather than at the first call.
    Client(_named(named), **settings).close()
    with _lock:
        _nodes, _settings = named, dict(settings)
        _client = _async_client = None


def default_client() -> Client:
    """The client of throttled functions."""
    global _client
    with _lock:
        if _client is None:
            _client = Client(_named(_nodes), **_settings)
        return _client


def default_async_client() -> AsyncClient:
    """The client of throttled coroutine functions."""
    global _async_client
    with _lock:
        if _async_client is None:
            _async_client = AsyncClient(_named(_nodes), **_settings)
        return _async_client


def _named(nodes: Union[str, Iterable[str], None]) -> List[str]:
    if nodes is None:
        nodes = os.environ.get("QUORATE_NODES") or NODES
    if isinstance(nodes, str):
        nodes = [node for node in nodes.split(",") if node.strip()]
    return list(nodes)


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
