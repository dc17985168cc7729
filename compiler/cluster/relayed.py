"""Requests that a dask worker passes on to a compiling process, and the replies it passes back.

The build reads the replies with every type checked; here only what the pool looks at counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pallasc.compiler.workers.messages import Failed, Reply, Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayedReply(Reply):
    """A reply that says it went well, as it came."""

    body: Mapping[str, object]

    def to_json(self) -> dict[str, object]:
        """Return the reply as it came."""
        return dict(self.body)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relayed(Request):
    """A request as the build made it."""

    op: ClassVar[str] = "relayed"
    reply: ClassVar[type[Reply]] = RelayedReply
    body: Mapping[str, object]

    def to_json(self) -> dict[str, object]:
        """Return the request as the compiling process reads it."""
        return {**self.body, "task": self.task}

    def read_reply(self, data: Mapping[str, object]) -> Reply:
        """Return the reply, unread unless it is a failure.

        Raises:
            ValueError: it is malformed.
        """
        ok, task, tainted = data.get("ok"), data.get("task"), data.get("tainted", False)
        if type(ok) is not bool or type(tainted) is not bool:
            raise ValueError("a reply says whether it is ok, and whether its process is tainted")
        if task not in (None, self.task):
            raise ValueError(f"a reply to request {task}")
        return RelayedReply(body=data, tainted=tainted) if ok else Failed.from_json(data)
