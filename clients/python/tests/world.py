"""Flows without sockets or clocks: a made-up cluster answers, and time passes only when somebody sleeps."""

import json

from quorate.core import Core
from quorate.effects import Reply, Send, Sleep
from quorate.http1 import Answer
from quorate.options import Options

MS = 1_000_000
A, B, C = "http://a:1", "http://b:2", "http://c:3"


class Flag:
    """An event for a world with one thread."""

    def __init__(self):
        self.is_set = False

    def set(self):
        self.is_set = True


def problem(code, status, **members):
    """A problem as a node writes it."""
    return status, {"type": f"urn:quorate:error:{code}", "title": code, "status": status, "detail": code, "code": code, **members}


def grant(request, permit=1, **members):
    """A grant of what was asked for."""
    body = {"granted": True, "key": request["key"], "permit": permit, "slot_ms": 5.0, "wait_ms": 0, "reserved": 0}
    return 200, {**body, "limit": request.get("limit", "1/6s"), "replayed": False, **members}


class World:
    """`script` has one entry per request: a callable from the request's content to `(status, content)` or
    `(status, content, headers)`, or the words "refused" (no connection) and "lost" (sent, no answer)."""

    def __init__(self, *script, nodes=(A, B, C), way_ms=0, **settings):
        self.now_ns = 1_000 * MS
        self.way_ns = way_ms * MS
        self.script = list(script)
        self.sent = []
        self.asked = []
        self.naps = []
        #: Raised at the so-manieth nap, from 0.
        self.interrupt_nap = None
        #: Comes with the so-manieth reply, from 0.
        self.interrupt_reply = None
        self.core = Core(nodes, Options(**settings), Flag, now=lambda: self.now_ns, rand=lambda: 0.0)

    def run(self, flow):
        """What comes of a flow."""
        try:
            effect = next(flow)
            while True:
                try:
                    result = self.perform(effect)
                except BaseException as error:  # noqa: B902 - handed on as a driver does
                    effect = flow.throw(error)
                else:
                    effect = flow.send(result)
        except StopIteration as done:
            return done.value

    def perform(self, effect):
        if isinstance(effect, Send):
            return self.exchange(effect)
        if isinstance(effect, Sleep):
            self.naps.append((effect.until_ns - self.now_ns) / MS)
            if self.interrupt_nap == len(self.naps) - 1:
                raise KeyboardInterrupt
            self.now_ns = max(self.now_ns, effect.until_ns)
            return None
        return effect.ticket.event.is_set

    def exchange(self, send):
        number = len(self.asked)
        assert self.script, f"nobody expected {send.request.method} {send.request.path} at {send.node}"
        step = self.script.pop(0)
        self.asked.append(send.node)
        if step == "refused":
            return Reply(None, "connection refused")
        sent_ns = self.now_ns
        content = json.loads(send.request.body) if send.request.body else {}
        self.sent.append((send.node, send.request, content))
        self.now_ns += self.way_ns
        stop = KeyboardInterrupt() if self.interrupt_reply == number else None
        if step == "lost":
            self.now_ns += send.timeout_ns
            return Reply(None, "no answer in time", sent_ns, self.now_ns, stop=stop)
        status, body, *headers = step(content)
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return Reply(Answer(status, headers[0] if headers else {}, raw), "", sent_ns, self.now_ns, stop=stop)
