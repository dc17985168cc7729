"""What the machine is: asked in a process of its own, as everything that touches the GPU."""

from __future__ import annotations

from desk import Desk
from machine import describe_machine


def run(desk: Desk) -> None:
    """Write the line that says what the machine is."""
    desk.results.write("machine", **describe_machine())
