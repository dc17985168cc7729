"""The connection to a scheduler, where dask itself fails."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from pallasc.compiler.cluster.address import parse_address
from pallasc.compiler.cluster.link import Arrived, Broken, Link


@dataclass
class Future:
    """A finished future of dask's, as far as a link looks at it."""

    key: str
    status: str = "finished"
    released: bool = False

    def release(self) -> None:
        self.released = True


@dataclass
class Client:
    """Gives results, unless one of them cannot be read."""

    unreadable: str
    asked: list[int] = field(default_factory=list)
    status: str = "running"

    async def gather(self, futures: Mapping[str, Future], errors: str) -> dict[str, bytes]:
        self.asked.append(len(futures))
        if self.unreadable in futures:
            raise TypeError("cannot deserialize this")
        return {key: key.encode() for key in futures}


def test_a_result_that_dask_cannot_read_is_told_and_no_other_is_lost() -> None:
    link: Any = Link(parse_address("dask://127.0.0.1:1"), 1)
    futures = {key: Future(key) for key in "abc"}
    link._client, link._futures, link._ready = Client("b"), dict(futures), [*futures.values()]
    asyncio.run(link._gather())
    told = [link.events.get_nowait() for _ in futures]
    assert told == [
        Arrived("a", b"a"),
        Broken("b", False, "TypeError: cannot deserialize this"),
        Arrived("c", b"c"),
    ]
    assert link.events.empty()
    assert link._client.asked == [3, 1, 1, 1]
    assert (link._futures, link._ready) == ({}, [])
    assert all(future.released for future in futures.values())


@pytest.mark.parametrize("patience_s", [60.0, 0.0])
def test_a_scheduler_that_is_too_busy_to_answer_is_asked_again(
    patience_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    link: Any = Link(parse_address("dask://head:1"), 1, patience_s=patience_s)
    asked: list[str] = []

    async def connected(url: str, **options: object) -> str:
        asked.append(url)
        if len(asked) == 1:
            raise TimeoutError
        return "a client"

    monkeypatch.setattr("distributed.Client", connected)
    if patience_s:
        assert asyncio.run(link._connect("tcp://head:1")) == "a client"
        assert link.events.empty()
        return
    assert asyncio.run(link._connect("tcp://head:1")) is None
    told = link.events.get_nowait().error.message
    assert told == "there is no scheduler that answers at dask://head:1: TimeoutError"


def test_a_port_that_accepts_and_says_nothing_is_no_scheduler() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"127.0.0.1:{silent.getsockname()[1]}"
        link: Any = Link(parse_address(f"dask://{place}"), 1, patience_s=0.5)
        assert asyncio.run(link._connect(f"tcp://{place}")) is None
    told = link.events.get_nowait().error.message
    assert told.startswith(f"there is no scheduler that answers at dask://{place}: ")
