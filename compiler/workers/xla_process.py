"""Have XLA compile in a process of its own, if it would use another assembler in this process.

A program may have loaded libnvJitLink, as torch and JAX on a GPU do, or have compiled before; and
the device library of the system cannot be hidden here (`device_library`). Tracing and lowering stay
in this process, so that closures compile; the module and XLA's options go to the other.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pallasc.compiler.lowering.device_library import TOOLKIT
from pallasc.compiler.lowering.patches import patched
from pallasc.compiler.lowering.ptxas_reports import Reports
from pallasc.compiler.toolchain.setup import Setup
from pallasc.compiler.workers.failures import exit_in_words
from pallasc.compiler.workers.scratch import temporary_folder
from pallasc.compiler.workers.xla_worker import receive, send
from pallasc.errors import CompileError, ToolError
from pallasc.specs.gpus import Target


class XlaRuntimeError(Exception):
    """What XLA raised in the other process; `output` is what was written meanwhile.

    Named as JAX's own class, since messages show the name.
    """

    output = ""


class XlaProcess:
    """The process, for a single architecture.

    Args:
        setup: the toolchain and the environment of a compiling process.
    """

    def __init__(self, setup: Setup) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="pallasc-xla-", dir=temporary_folder()))
        script = self._folder / "reports"
        script.mkdir()
        self.reports = Reports(setup.toolchain.ptxas, script)
        path = os.pathsep.join([str(script), setup.environment["PATH"]])
        self._lock = threading.Lock()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-X", str(self._folder / TOOLKIT), "-P", "-m",
                 "pallasc.compiler.workers.xla_worker", str(setup.toolkit), str(self._folder)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                env={**setup.environment, "PATH": path}, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ToolError(f"a compiling process cannot be started: {error}") from error
        self.reports.process = self._process.pid

    @property
    def alive(self) -> bool:
        """Tell whether it can be asked."""
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
        """Have Mosaic ask that process for the newest PTX that its assembler reads."""
        from jax._src.lib import mosaic_gpu

        library: Any = mosaic_gpu
        asked = {"_get_ptxas_isa_version": lambda: self._ask("isa")}
        with patched(library._mosaic_gpu_ext, asked):
            yield

    def close(self) -> None:
        """End it, and wait for that."""
        self._process.kill()
        self._process.communicate()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, *request: Any) -> Any:
        source, target = self._process.stdout, self._process.stdin
        if source is None or target is None:
            raise ToolError("a compiling process has no pipes")
        with self._lock:
            try:
                send(target, request)
                answer = receive(source)
            except (EOFError, OSError) as error:
                ending = exit_in_words(self._process.wait())
                raise CompileError(f"the compiling process {ending}") from error
        if answer[0]:
            return answer[1]
        _, kind, text, output = answer
        failed = XlaRuntimeError(text if "RuntimeError" in kind else f"{kind}: {text}")
        failed.output = output
        raise failed
