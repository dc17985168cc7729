"""Do things in processes of their own, all at the same moment."""

import json
import os
from collections.abc import Callable, Sequence
from typing import Any


def together(works: Sequence[Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Run each in its own process, all waiting at a pipe for the start; return what they say.

    A process that ends without an answer counts as `{"wrong": ["died"]}` with no hits or puts.
    """
    start_read, start_write = os.pipe()
    children = [_start(work, start_read, start_write) for work in works]
    os.close(start_write)
    answers: list[dict[str, Any]] = []
    for child, pipe in children:
        with open(pipe, encoding="utf-8") as file:
            text = file.read()
        os.waitpid(child, 0)
        died = {"hits": 0, "puts": 0, "packs": 0, "lost": 0, "used": 0, "wrong": ["died"]}
        answers.append(json.loads(text) if text else died)
    os.close(start_read)
    return answers


def _start(
    work: Callable[[], dict[str, Any]], start_read: int, start_write: int
) -> tuple[int, int]:
    result_read, result_write = os.pipe()
    child = os.fork()
    if not child:
        os.close(start_write)
        os.read(start_read, 1)
        with open(result_write, "w", encoding="utf-8") as file:
            file.write(json.dumps(work()))
        os._exit(0)
    os.close(result_write)
    return child, result_read
