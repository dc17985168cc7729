"""Write and open functions that jax.export wrote, with a kernel of a bundle.

jax_exported.py WAY ARGUMENTS…, where WAY is the name of one of the first four functions. The kernel
is executed by the emulator, which gets its PTX from the bundle. Prints one JSON object.
"""

import json
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import emulated
import flat
import host_jax
import jax
import numpy as np
import standin
from jax import export

import pallasc
from pallasc.specs.bundle.bundle import open_bundle

SHAPE = (16, 512)
TEXTS, NAME = b"kernel\0add\0", b"pallasc_launch\0"


def write(bundle: str, folder: str) -> Any:
    """Write `bytes` and `digest` for JAX on the CPU, `cuda` for GPUs; return what was refused."""
    add = pallasc.open_bundle(bundle)["add"]
    array = jax.ShapeDtypeStruct(SHAPE, np.float32)
    checks = pallasc.jax_export_checks()
    for name, kernel, platform in (
        ("bytes", add, "cpu"),
        ("digest", add.by_digest, "cpu"),
        ("cuda", add, "cuda"),
    ):
        function = jax.jit(lambda x, y, kernel=kernel: 2 * kernel(x, y))
        exported = export.export(function, platforms=[platform], disabled_checks=checks)
        Path(folder, name).write_bytes(exported(array, array).serialize())
    try:
        export.export(jax.jit(add), platforms=["cpu"])(array, array)
    except ValueError as error:
        return str(error)


def read(bundle: str, devices: str, *files: str) -> Any:
    """Return what came of files, given as NAME=FILE, on a GPU, and of the process.

    The first file is called without handlers, `opened` after the bundle was opened as a user does,
    `flipped` with a byte of the cubin changed.
    """
    gpu, report, kernels = install(bundle, devices), {}, []
    for argument in files:
        name, _, file = argument.partition("=")
        data = bytearray(Path(file).read_bytes())
        if name == "opened":
            kernels.append(pallasc.open_bundle(bundle))
        if name == "flipped":
            data[data.index(b"\x7fELF") + 900] ^= 1
        report[name] = told(data)
        register_handlers()
    gpu.driver.check()
    compiler = [name for name in sys.modules if name.startswith("pallasc.compiler")]
    return {**report, "launched": gpu.launched, "compiler": compiler}


def flip(bundle: str, file: str) -> Any:
    """Return what came of flipped bits: of texts of the call, of its flat plan, of sealed plans.

    In the last ones the bit is in a table of the plan, whose digest then fits again, and kernels do
    nothing: only crashes are looked for. (What lies around is JAX's, which has no digests.)
    """
    gpu = install(bundle, "9.0")
    register_handlers()
    data, rng = Path(file).read_bytes(), random.Random(1)
    start = data.index(b"PALLASC\n")
    end = start + flat.HEADER.unpack_from(data, start)[3]
    tables = start + flat.place(data[start:end], "data")[0]
    texts = [*range(data.index(TEXTS), start), *range(data.index(NAME), end + len(NAME))]
    places = {"texts": rng.sample(texts, 10), "plan": rng.sample(range(start, end), 10)}
    places["sealed"] = rng.sample(range(start, tables), 16)
    answers: dict[str, Counter[str]] = {kind: Counter() for kind in places}
    assert told(data) == "right"
    for kind, at in [(kind, at) for kind, own in places.items() for at in own]:
        changed = bytearray(data)
        changed[at] ^= 1 << rng.randrange(8)
        if kind == "sealed":
            gpu.driver.kernel("*")(lambda launch: None)
            changed[start:end] = flat.sealed(bytes(changed[start:end]))
        print(f"byte {at}", file=sys.stderr, flush=True)  # the last one, where it crashes
        answers[kind][told(changed)] += 1
    return answers


def versions(*files: str) -> Any:
    """Return what came of files that other versions of JAX wrote."""
    driver = standin.load()
    driver.reset()

    @driver.kernel("*")
    def add(launch: Any) -> None:
        x, y, out = (launch.array(n, "float32", SHAPE) for n in range(3))
        out[...] = x + y

    register_handlers()
    found = {Path(file).name: told(bytearray(Path(file).read_bytes())) for file in files}
    driver.check()
    return {"jax": jax.__version__, **found}


def register_handlers() -> None:
    """Register what a user does, and handlers for the CPU."""
    if not hasattr(register_handlers, "is_done"):
        host_jax.register()
        vars(register_handlers)["is_done"] = True
    pallasc.register_jax_handlers()


def install(bundle_file: str, devices: str) -> Any:
    """Return the GPU that executes the kernels of a bundle."""
    driver = standin.load()
    driver.reset()
    driver.devices(devices)
    gpu = emulated.install(driver)
    with open_bundle(Path(bundle_file)) as bundle:
        for entry in bundle.entries():
            gpu.know(bundle.artifact(entry))
    return gpu


def told(data: bytes | bytearray) -> str:
    """Return "right" or "wrong" for the numbers of a function, or an error's words."""
    source = np.random.default_rng(7)
    x, y = (source.uniform(-1, 1, SHAPE).astype(np.float32) for _ in range(2))
    try:
        result = np.asarray(export.deserialize(bytearray(data)).call(x, y))
    except (jax.errors.JaxRuntimeError, ValueError, KeyError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {error}"
    right = result.shape == SHAPE and np.abs(result - 2 * (x + y)).max() < 1e-6
    return "right" if right else "wrong"


if __name__ == "__main__":
    way = {function.__name__: function for function in (write, read, flip, versions)}[sys.argv[1]]
    print(json.dumps(way(*sys.argv[2:])))
