"""A worker that imports next to nothing and executes the code that it is sent.

Becomes a worker by way of the warden, as the real one does. `Prepare` makes it say that it is
ready, `Warm` nothing; any other request is answered with what its `code` leaves in `value`. The
code sees the descriptor `answers`, the `channel`, and a dictionary `kept` that lives as long as the
worker.
"""

import json
import os
import pickle
from typing import Any


class Channel:
    """Sends answers; importing pallasc's own messages would take longer than most tests."""

    def __init__(self, answers: int) -> None:
        self.answers = answers

    def send(self, answer: object) -> None:
        os.write(self.answers, json.dumps(answer, separators=(",", ":")).encode() + b"\n")


class Requests(pickle.Unpickler):
    """Reads requests as their fields and the name of their class, without importing it."""

    def find_class(self, module: str, name: str) -> Any:
        return name if name != "rebuild" else lambda kind, fields: {**fields, "op": kind}


def main(requests: int, answers: int) -> int:
    channel = Channel(answers)
    kept: dict[str, Any] = {}
    with os.fdopen(requests, "rb") as source:
        while source.peek(1):
            message = Requests(source).load()
            if message["op"] == "Warm":
                continue
            scope = {"answers": answers, "channel": channel, "kept": kept}
            exec(message.get("code", ""), scope)
            if message["op"] == "Prepare":
                answer = {"ready": True}
            else:
                answer = {"type": "Done", "value": scope.get("value"), "task": message["task"]}
            channel.send(answer)
    return 0
