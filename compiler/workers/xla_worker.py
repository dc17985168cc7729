"""A process in which XLA compiles modules that another process has lowered.

Started as `python -X PLACE -P -m pallasc.compiler.workers.xla_worker`; `device_library` says why.
Frames on the standard input and output: eight bytes for the length, then a pickle. To it:
`("isa",)`, or `("compile", target, number of devices, MLIR bytecode, XLA's CompileOptions)`. From
it: `(True, result)`, or `(False, class of the error, its text, what was written meanwhile)`. It
ends with its input.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import struct
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from pallasc.compiler.lowering import device_library
from pallasc.compiler.lowering.diagnose import captured_output
from pallasc.compiler.toolchain import nvjitlink
from pallasc.errors import message_of
from pallasc.specs.garbage import collector_past

LENGTH = struct.Struct(">Q")


def send(target: IO[bytes], message: Any) -> None:
    """Write a frame."""
    data = pickle.dumps(message)
    target.write(LENGTH.pack(len(data)) + data)
    target.flush()


def receive(source: IO[bytes]) -> Any:
    """Read a frame.

    Raises:
        EOFError: there is none, or it ends too early.
    """
    head = source.read(LENGTH.size)
    size = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
    data = source.read(size)
    if not size or len(data) < size:
        raise EOFError
    return pickle.loads(data)


def main(toolkit: str, folder: str) -> None:
    """Serve requests until there are no more.

    Args:
        toolkit: the folder that assembler and device library come from.
        folder: of temporary files, which the command line names.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    nvjitlink.hide()
    device_library.offer(Path(toolkit), Path(folder))
    tempfile.tempdir = folder
    # The compiler prints to descriptor 1, which must not get among the frames.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    # Says where Mosaic's host code finds the runtime library, and takes long.
    with collector_past():
        importlib.import_module("jax.experimental.mosaic.gpu")
    while True:
        try:
            request = receive(sys.stdin.buffer)
        except EOFError:
            return
        send(answers, _answer(*request))


def _answer(what: str, *arguments: Any) -> tuple[Any, ...]:
    with captured_output() as output:
        try:
            result = _isa() if what == "isa" else _compile(*arguments)
        except Exception as error:  # noqa: BLE001 - the parent raises it again
            return False, type(error).__name__, message_of(error), output()
        written = output()
    os.write(2, written.encode())
    return True, result


def _isa() -> int:
    from jax._src.lib import mosaic_gpu

    library: Any = mosaic_gpu
    version: int = library._mosaic_gpu_ext._get_ptxas_isa_version()
    return version


def _compile(target: Any, count: int, bytecode: bytes, options: bytes) -> bytes:
    from jax._src import lib
    from jax._src.interpreters import mlir
    from jaxlib.mlir import ir

    from pallasc.compiler.lowering.topology import devices_for

    library: Any = lib
    xla_client = library.xla_client
    devices = devices_for(target, count)
    with mlir.make_ir_context():
        executable = devices[0].client.compile(
            ir.Module.parse(bytecode),
            executable_devices=xla_client.DeviceList(devices),
            compile_options=xla_client.CompileOptions.ParseFromString(options),
        )
    serialized: bytes = executable.serialize()
    return serialized


if __name__ == "__main__":
    main(*sys.argv[1:])
