"""What comes behind what, worked out from the calls that the stand-in got: an oracle for races.

Two pieces of work are ordered where they are in one stream, where an event leads from one to the
other, or where the host waited between them. Streams here do not wait for the default one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from standin import Standin

LAUNCH = "cuLaunchKernelEx"
COPIES = {"cuMemcpyHtoDAsync_v2": (0, "writes"), "cuMemcpyDtoHAsync_v2": (1, "reads")}
EVENTS = ("cuEventRecord", "cuStreamWaitEvent", "cuEventSynchronize")
NAMES = (LAUNCH, *COPIES, *EVENTS, "cuStreamSynchronize")


@dataclass
class Work:
    """A launch or a copy: the memory that it uses, and the numbers of all work before it."""

    what: str
    reads: set[int]
    writes: set[int]
    before: frozenset[int]


def races(
    driver: Standin, uses_of: Callable[[Any], tuple[Sequence[int], Sequence[int]]]
) -> list[str]:
    """Return pairs of work on the same memory, one of them writing, that are in no order.

    Args:
        driver: whose calls are looked at; each was made without a capture.
        uses_of: of a launch, the addresses that it reads and those that it writes.
    """
    launches = iter(driver.launches)
    streams: dict[int, set[int]] = {}
    events: dict[int, set[int]] = {}
    host: set[int] = set()
    done: list[Work] = []
    found = []
    for call in driver.calls(*NAMES):
        if call.code:
            continue
        past = streams.setdefault(call.stream or 1, set())
        if call.name == "cuEventRecord":
            events[call.values[0]] = set(past)
        elif call.name == "cuStreamWaitEvent":
            past |= events[call.values[0]]
        elif call.name == "cuStreamSynchronize":
            host |= past
        elif call.name == "cuEventSynchronize":
            host |= events[call.values[0]]
        else:
            past |= host
            if call.name == LAUNCH:
                reads, writes = map(set, uses_of(next(launches)))
            else:
                place, kind = COPIES[call.name]
                reads, writes = set(), set()
                (reads if kind == "reads" else writes).add(call.values[place])
            work = Work(f"{call.name} in {call.stream:#x}", reads, writes, frozenset(past))
            for number, other in enumerate(done):
                shared = (work.writes & (other.reads | other.writes)) | (work.reads & other.writes)
                if shared and number not in work.before:
                    found.append(f"{other.what} (work {number}) and {work.what} (work {len(done)})")
            past.add(len(done))
            done.append(work)
    return found
