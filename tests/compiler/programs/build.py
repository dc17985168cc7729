"""Compile functions for one target in this process and write down what came out.

Usage: build.py OUTPUT TARGETS FILE [NAME...]. FILE defines CASES, name -> (function, args, static),
for several devices with a mesh behind; OUTPUT gets JSON: for each case its record, blobs, the
serialised executable and key, or its error. Bytes are in base64. TARGETS are joined by
commas; the second is there to be refused.
"""

import base64
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from pallasc.compiler.inputs.process_snapshot import collector_past
from pallasc.compiler.toolchain.setup import compiler_variables, compiling_environment, tool_folder
from pallasc.compiler.toolchain.toolchain import find_toolchain
from pallasc.errors import PallascError
from pallasc.specs.arrays import resolve_array
from pallasc.specs.canonical import labelled_key
from pallasc.specs.gpus import resolve_target


def parse_args(args: Any) -> Any:
    """Return the arrays in text as array specs."""
    if isinstance(args, str):
        return resolve_array(args)
    if isinstance(args, list):
        return [parse_args(item) for item in args]
    if isinstance(args, dict):
        return {name: parse_args(item) for name, item in args.items()}
    return args


def describe(error: PallascError) -> dict[str, Any]:
    """Return an error as data."""
    place = error.location
    return {
        "type": type(error).__name__,
        "message": error.message,
        "file": place.file if place else None,
        "line": place.line if place else None,
        "hint": error.hint,
        "exit_code": error.exit_code,
        "text": str(error),
    }


def keep_executable(kept: list[bytes]) -> None:
    """Make the compiler put every serialised executable that it reads into `kept`."""
    from pallasc.compiler.lowering import compile, serialized

    def parse(data: bytes) -> Any:
        kept.append(data)
        return serialized.parse_executable(data)

    compile.parse_executable = parse


def build(case: Any, target: str, tools: Any) -> dict[str, Any]:
    """Compile one case."""
    kept: list[bytes] = []
    keep_executable(kept)
    from pallasc.compiler.lowering.compile import action_fields, compile_job, lower_job
    from pallasc.compiler.lowering.lower import Job

    function, args, static, *mesh = case
    try:
        job = Job(function, parse_args(args), static, resolve_target(target), *mesh)
        lowered = lower_job(job)
        key = labelled_key(action_fields(job, lowered, tools))
        record, blobs = compile_job(job, lowered, tools)
    except PallascError as error:
        return {"error": describe(error)}
    return {
        "record": record,
        "blobs": {name: base64.b64encode(blob).decode() for name, blob in blobs.items()},
        "executable": base64.b64encode(kept[0]).decode(),
        "key": key,
    }


def main(output: str, targets: str, file: str, *names: str) -> None:
    """Compile the cases and write the results."""
    toolchain = find_toolchain()
    folder, keep = tool_folder(toolchain)
    os.environ.update(compiling_environment(os.environ, folder))
    from pallasc.compiler.lowering.compile import Tools

    record = {"made": "by a test"}
    variables = compiler_variables(os.environ)
    tools = Tools(record, toolchain.ptxas, {}, variables, folder.parent)
    with collector_past():  # it imports JAX
        cases = runpy.run_path(file)["CASES"]
    results = {
        f"{name}" if "," not in targets else f"{name}@{target}": build(cases[name], target, tools)
        for target in targets.split(",")
        for name in names or cases
    }
    Path(output).write_text(json.dumps(results))
    if keep is not None:
        keep.cleanup()


if __name__ == "__main__":
    main(*sys.argv[1:])
