"""Let one module leak into another, and print as JSON what the other one sees: leaks.py FOLDER.

The folder has `cases.json`: name -> [statements of the first module, statements of its function,
expression of the second]. Each case runs in a fork of a process that has imported JAX. Printed are,
by name, the value of the expression alone, after the first module where nothing cleans up, and
after it where the process is fit for another variant; null for the last if it is retired.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax.experimental.pallas.mosaic_gpu

from pallasc.compiler.inputs.process_snapshot import ProcessSnapshot, SharedState
from pallasc.compiler.inputs.recorders import isolate_process, record_imports
from pallasc.compiler.lowering.entry import import_function

HEADER = "import os, sys\nimport jax\nimport jax.numpy as jnp\nimport numpy as np\nimport helper\n"


def in_child(work: Any) -> Any:
    """Return what a function returns in a forked process."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = json.dumps(work())
        except BaseException as error:
            answer = json.dumps(f"{type(error).__name__}: {error}")
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as source:
        answer = source.read()
    os.waitpid(child, 0)
    return json.loads(answer)


def main(folder: str) -> None:
    cases = json.loads(Path(folder, "cases.json").read_text())
    for name, (imported, traced, read) in cases.items():
        body = "\n    ".join(["pass", *traced.splitlines()])
        Path(folder, f"a_{name}.py").write_text(f"{HEADER}{imported}\ndef run():\n    {body}\n")
        Path(folder, f"z_{name}.py").write_text(f"{HEADER}def run():\n    return {read}\n")
    isolate_process(os.path.join(folder, "own"), "pallasc", hidden=(), path=os.environ["PATH"])
    record_imports()

    def run(name: str, *, leaks: bool, cleans: bool) -> Any:
        before, shared = ProcessSnapshot(), SharedState() if cleans else None  # a fork differs
        if leaks:
            with before.working_in(folder):
                import_function(f"a_{name}.py:run", folder)()
            if shared is not None and (shared.reset() or before.is_tainted()):
                return None
            if not cleans:
                os.chdir(folder)
        return repr(import_function(f"z_{name}.py:run", folder)())

    seen = {
        name: [
            in_child(lambda: run(name, leaks=leaks, cleans=cleans))  # noqa: B023 - runs now
            for leaks, cleans in ((False, False), (True, False), (True, True))
        ]
        for name in cases
    }
    print(json.dumps(seen))


if __name__ == "__main__":
    del jax
    main(sys.argv[1])
