"""The loop of a worker that keeps nothing from one request to the next."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from pallasc.compiler.workers.channel import Channel, decode
from pallasc.compiler.workers.messages import Failed, Reply, Request
from pallasc.errors import PallascError

R = TypeVar("R", bound=Request)


def serve(descriptor: str, channel: Channel, kind: type[R], answer: Callable[[R], Reply]) -> int:
    """Answer requests until there are no more, and return the status to end with.

    Args:
        descriptor: where the requests come from, in decimal.
        channel: takes the answers.
        kind: the class of all requests.
        answer: returns the answer to a request, or raises a `PallascError`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    with os.fdopen(int(descriptor), "rb") as source:
        for line in source:
            request = kind.from_json(decode(line))
            try:
                reply = answer(request)
            except PallascError as error:
                reply = Failed.because_of(error)
            channel.send(replace(reply, task=request.task).to_json())
    return 0
