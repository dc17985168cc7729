"""The process of one point, seen from the run: asked with a time limit, killed with all it started.

The run itself never makes a context on the GPU, so that no error of a kernel can reach it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pallasc.errors import DeviceError
from pallasc.runtime.tuning.protocol import decode, encode

_MODULE = "pallasc.runtime.tuning.point_process"
_MOST_BYTES = 4096
_KILL_S = 30.0
"""A process that is not dead after this time hangs in the driver."""


class PointError(Exception):
    """A point cannot be measured, and its process has ended or is of no more use.

    Args:
        why: the reason.
        code: the driver's number of it, 0 where it is none of the driver's.
        stuck: why its process cannot be ended, None where it has ended.
    """

    def __init__(self, why: str, code: int = 0, stuck: DeviceError | None = None) -> None:
        super().__init__(why)
        self.why = why
        self.code = code
        self.stuck = stuck


class PointProcess:
    """A process for one point; it starts at once.

    Args:
        name: the variant's id.
        timeout_s: how long an answer may take.
        descriptors: memory that it reads.

    Attributes:
        name: as given.
        outputs: descriptor of memory that it may write.
    """

    def __init__(self, name: str, timeout_s: float, descriptors: Sequence[int]) -> None:
        self.name = name
        self._timeout_s = timeout_s
        self._answers, answers = os.pipe()
        self._errors = os.memfd_create("errors")
        self.outputs = os.memfd_create("outputs")
        requests, taken = os.pipe()
        self._requests = os.fdopen(taken, "wb")
        self._said = ""
        command = [sys.executable, "-P", "-m", _MODULE, str(os.getpid()), str(answers)]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=requests,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=(answers, self.outputs, *descriptors),
                start_new_session=True,
            )
        finally:
            os.close(answers)
            os.close(requests)

    def ask(self, message: Mapping[str, object]) -> dict[str, object]:
        """Return the answer to a message.

        Raises:
            PointError: it says that it cannot, it ended, or the time is over; then it is killed.
        """
        try:
            self._requests.write(encode(message))
            self._requests.flush()
            answer = decode(self._line())
        except (BrokenPipeError, EOFError):
            stuck = self._killed()
            raise PointError(self._ending(), stuck=stuck) from None
        except TimeoutError:
            why = f"no answer in {self._timeout_s:g} s: it hangs"
            raise PointError(why, stuck=self._killed()) from None
        except BaseException:
            self.kill()
            raise
        if "error" in answer:
            raise PointError(str(answer["error"]), int(str(answer["code"])), self._killed())
        return answer

    def read_outputs(self, sizes: Sequence[int]) -> list[bytes]:
        """Return what it wrote: outputs of these sizes, one behind the other; they are removed."""
        with open(self.outputs, "rb", closefd=False) as file:
            file.seek(0)
            outputs = [file.read(size) for size in sizes]
        os.ftruncate(self.outputs, 0)
        return outputs

    def _line(self) -> bytes:
        """Return the next line of the process.

        Raises:
            EOFError: it has ended.
            TimeoutError: the time is over.
        """
        line, deadline_s = b"", time.monotonic() + self._timeout_s
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        while not line.endswith(b"\n"):
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not poll.poll(1000 * left_s):
                raise TimeoutError
            data = os.read(self._answers, 1 << 16)
            if not data:
                raise EOFError
            line += data
        return line

    def _killed(self) -> DeviceError | None:
        """End the process; return why it does not end."""
        try:
            self.kill()
        except DeviceError as error:
            return error
        return None

    def kill(self) -> None:
        """End the process and all of its session; it can be called again.

        Raises:
            DeviceError: it does not end.
        """
        if self._answers < 0:
            return
        os.close(self._answers)
        self._answers = -1
        with suppress(ProcessLookupError):
            # It is not waited for yet, so the number is still its own.
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._process.wait(_KILL_S)
        except subprocess.TimeoutExpired:
            raise DeviceError(
                f"the process of {self.name}, {self._process.pid}, does not end after SIGKILL.",
                hint="The GPU may need a reset: see nvidia-smi and the kernel's log.",
            ) from None
        finally:
            with suppress(BrokenPipeError):
                self._requests.close()
            self._said = _last_line(self._errors)
            os.close(self._errors)
            os.close(self.outputs)

    def _ending(self) -> str:
        """Return how a process ended by itself, with the last line that it wrote."""
        code = self._process.returncode
        if code is None:
            return "its process gives no answers any more"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
        return f"its process ended with {how}" + (f": {self._said}" if self._said else "")


def _last_line(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    text = os.pread(descriptor, _MOST_BYTES, max(0, size - _MOST_BYTES)).decode("utf-8", "replace")
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")
