"""Which nodes there are, and which to ask first."""

from __future__ import annotations

import threading
from typing import Callable, Dict, Iterable, List, Optional, Tuple, Union
from urllib.parse import urlsplit

NODES_MAX = 64
#: How long a node that does not answer is asked last, and not believed to lead, whoever says so: it may stand still, or its
#: address may be one that cannot be reached from here.
SHUN_NS = 5_000_000_000


def base(url: object) -> str:
    """The URL of a node without what a person may have put at its end; `ValueError` if it is none."""
    if not isinstance(url, str):
        raise TypeError(f"the URL of a node is a str, not {type(url).__name__}")
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is no URL of a node ({error}): http://host:port") from None
    host = parts.hostname
    plain = url.isascii() and url.strip().isprintable() and " " not in url.strip()
    if parts.scheme != "http" or not host or not plain or "@" in parts.netloc:
        raise ValueError(f"{url!r} is no URL of a node: http://host:port")
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ValueError(f"{url!r} is no URL of a node: nothing comes behind the port")
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{80 if port is None else port}"


def address(node: str) -> Tuple[str, int]:
    """Host and port of a URL that `base` made."""
    parts = urlsplit(node)
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


class Nodes:
    """The nodes of a cluster as a client knows them. Any of them answers; the leader just answers without a hop."""

    def __init__(self, urls: Union[str, Iterable[str]], now: Callable[[], int]) -> None:
        named = [urls] if isinstance(urls, str) else list(urls)
        if not 1 <= len(named) <= NODES_MAX:
            raise ValueError(f"a client needs 1 to {NODES_MAX} nodes, these are {len(named)}")
        self.configured: List[str] = list(dict.fromkeys(base(url) for url in named))
        self._now = now
        self._lock = threading.Lock()
        self._leader: Optional[str] = None
        self._shunned: Dict[str, int] = {}

    def in_turn(self) -> List[str]:
        """The leader if it is known, then all others in the order they were named, those that were silent last."""
        with self._lock:
            leader, now = self._leader, self._now()
            silent = {node for node, until in self._shunned.items() if until > now}
        others = sorted((node for node in self.configured if node != leader), key=lambda node: node in silent)
        return others if leader is None else [leader, *others]

    @property
    def leader(self) -> Optional[str]:
        """Where the leader was last seen."""
        with self._lock:
            return self._leader

    def answered(self, node: str, status: int, named: Optional[str]) -> None:
        """A follower names the leader on every answer; a decision without that header came from the leader itself."""
        with self._lock:
            self._shunned.pop(node, None)
            if named is not None:
                try:
                    named = base(named)
                except ValueError:
                    return
                if self._shunned.get(named, 0) <= self._now():
                    self._leader = named
            elif status in (200, 429):
                self._leader = node
            elif self._leader == node:
                self._leader = None

    def silent(self, node: str) -> None:
        """A node that does not answer is not asked first again."""
        with self._lock:
            if self._leader == node:
                self._leader = None
            now = self._now()
            self._shunned = {other: until for other, until in self._shunned.items() if until > now}
            self._shunned[node] = now + SHUN_NS

    def renew_locks(self) -> None:
        """After a fork: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()
