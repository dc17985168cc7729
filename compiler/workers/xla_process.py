"""Have XLA compile in a separate process if it would use a different assembler in this one.

A program may have loaded libnvJitLink, as torch and JAX on a GPU do, or have compiled before; and
the system's device library cannot be hidden in this process (`toolkit`). Tracing and lowering stay
in this process, so that closures compile; the module and XLA's options go to the other process.

It is started as `python -X PLACE -P -m pallasc.compiler.workers.xla_process`; see `toolkit` for the
reason. The two processes use a `multiprocessing` connection, whose descriptor is the first
argument. Requests: `("isa",)`, or `("compile", target, number of devices, MLIR bytecode, XLA's
CompileOptions)`. Replies: `(True, result)`, or `(False, class of the error, its text, output during
the request)`. The process ends when the connection closes.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

from pallasc.compiler.lowering.jax_versions import patched
from pallasc.compiler.lowering.kernel_output import captured_output
from pallasc.compiler.toolchain.setup import Setup
from pallasc.compiler.toolchain.toolkit import TOOLKIT, hide_nvjitlink, offer_library
from pallasc.compiler.workers.worker_process import exit_in_words, temporary_folder
from pallasc.errors import CompileError, ToolError, message_of
from pallasc.specs.gpus import Target
from pallasc.specs.objects import collector_past


def main(descriptor: str, toolkit: str, folder: str) -> None:
    """Serve requests until there are no more.

    Args:
        descriptor: descriptor for requests and replies, in decimal.
        toolkit: the folder with the assembler and the device library.
        folder: folder of temporary files, as in the command line.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides what an interrupt means
    hide_nvjitlink()
    offer_library(Path(toolkit), Path(folder))
    tempfile.tempdir = folder
    # Sets the path where Mosaic's host code finds the runtime library; slow.
    with collector_past():
        importlib.import_module("jax.experimental.mosaic.gpu")
    with Connection(int(descriptor)) as build, contextlib.suppress(EOFError):
        while True:
            build.send(_answer(*build.recv()))


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

    from pallasc.compiler.lowering.jax_versions import devices_for

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


class XlaRuntimeError(Exception):
    """An XLA error in the other process; `output` is the output during the request.

    It has the name of JAX's own class, since messages show the name.
    """

    output = ""


class XlaProcess:
    """The process that compiles, for a single architecture.

    Args:
        setup: the toolchain and the environment of a compiling process.
    """

    def __init__(self, setup: Setup) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pallasc-xla-", dir=temporary_folder()))
        self._lock = threading.Lock()
        self._connection, theirs = Pipe()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-X", str(self._folder / TOOLKIT), "-P", "-m",
                     "pallasc.compiler.workers.xla_process", str(theirs.fileno()),
                     str(setup.toolkit), str(self._folder)],
                    stdin=subprocess.DEVNULL, stdout=2, pass_fds=[theirs.fileno()],
                    env=setup.environment, start_new_session=True,
                )  # fmt: skip
        except OSError as error:
            raise ToolError(f"a compiling process cannot be started: {error}") from error

    @property
    def alive(self) -> bool:
        """True if it can serve requests."""
        return self._process.poll() is None

    def compile(self, call: Any, target: Target, count: int) -> bytes:
        """Compile a prepared call (`xla_compile`) for `count` devices; return the executable.

        Raises:
            XlaRuntimeError: what XLA raised.
            CompileError: the process died.
        """
        from jax._src.interpreters import mlir

        bytecode = mlir.module_to_bytecode(call.module)
        options = call.options.SerializeAsString()
        result: bytes = self._ask("compile", target, count, bytecode, options)
        return result

    @contextlib.contextmanager
    def isa_version(self) -> Iterator[None]:
        """Make Mosaic ask that process for the newest PTX version that its assembler reads."""
        from jax._src.lib import mosaic_gpu

        library: Any = mosaic_gpu
        asked = {"_get_ptxas_isa_version": lambda: self._ask("isa")}
        with patched(library._mosaic_gpu_ext, asked):
            yield

    def close(self) -> None:
        """End it, and wait until it has ended."""
        self._process.kill()
        self._process.wait()
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, *request: Any) -> Any:
        with self._lock:
            try:
                self._connection.send(request)
                answer = self._connection.recv()
            except (EOFError, OSError) as error:
                ending = exit_in_words(self._process.wait())
                raise CompileError(f"the compiling process {ending}") from error
        if answer[0]:
            return answer[1]
        _, kind, text, output = answer
        failed = XlaRuntimeError(text if "RuntimeError" in kind else f"{kind}: {text}")
        failed.output = output
        raise failed


if __name__ == "__main__":
    main(*sys.argv[1:])
