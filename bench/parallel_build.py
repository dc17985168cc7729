"""The gain of two processes, the memory of large builds, and the cost of one change.

* jobs: on two cores, 200 misses of the library mix build at least 1.8 times as fast with `--jobs 2`
  as with `--jobs 1`.
* memory: the command line process of a build of 10,000 variants, with `--json` and `--junit`, takes
  at most 200 MB, both if all variants are in the store and if none is. All misses have the same
  module, so only one is compiled.
* changed: with one changed kernel among 1,001 variants, a build takes at most 1.3 times as long as
  a script that imports JAX and compiles only that kernel.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from itertools import count
from pathlib import Path

from harness import (
    PYTHON,
    Figure,
    build_command,
    in_turn,
    medians,
    ratio,
    run_benchmark,
    timed_process,
)
from inputs import HELPER, KERNEL, fill, plain_jax, write_mix, write_spec

from pallasc.cache.store import Store
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import Variant

MEASURED = """
import json, resource, sys
from pallasc.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, used.ru_maxrss * 1024]))
"""
SAME = """\
schema: 1
targets: [h100-sxm]
kernels:
  - name: same
    entry: kernel.py:numbered
    args: {{x: "f32[128]", y: "f32[128]"}}
    static: {{number: "{{number}}"}}
    matrix: {{number: {numbers}}}
"""
ONE_MORE = """\
  - name: single
    entry: single.py:add
    args: {x: "f32[4096, 128]", y: "f32[4096, 128]"}
    static: {block_size: 2048}
"""


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Measure all parts, or those that `--only` names."""
    figures = []
    for name in options.only or PARTS:
        (place / name).mkdir()
        figures += PARTS[name](place / name, options)
    return figures


def two_processes(place: Path, options: argparse.Namespace) -> list[Figure]:
    """Build misses with one process and with two."""
    spec, stores = write_mix(place, options.misses), count()

    def build(jobs: str) -> float:
        store = place / f"store{next(stores)}"
        return timed_process(build_command(spec, store, "--jobs", jobs))

    works = {"--jobs 1": lambda: build("1"), "--jobs 2": lambda: build("2")}
    times = in_turn(works, options.rounds, warm_up=False)
    name = f"{options.misses} misses, "
    gain = Figure(f"{name}--jobs 1 / --jobs 2", ratio(times, *works), goal=1.8, at_least=True)
    return [*medians(times, name), gain]


def memory(place: Path, _: argparse.Namespace) -> list[Figure]:
    """Measure the command line process of large builds."""
    spec = write_spec(place, 10_000)
    fill(Store(place / "store"), spec)
    reports = ("--json", "--junit", str(place / "report.xml"))
    builds = {
        "10,000 hits": peak_bytes(spec, place / "store"),
        "10,000 hits, reports": peak_bytes(spec, place / "store", *reports),
        "10,000 misses, reports": peak_bytes(write_same(place), place / "new", *reports),
    }
    return [
        Figure(f"memory, {name}", size_bytes / 1e6, "MB", goal=200)
        for name, size_bytes in builds.items()
    ]


def write_same(place: Path) -> Path:
    """Write a spec of 10,000 variants with different keys and, once lowered, one module."""
    numbered = "def numbered(x, y, *, number):\n    return add(x, y, block_size=128)\n"
    (place / "kernel.py").write_text(f"{KERNEL}\n\n{numbered}")
    (place / "helper.py").write_text(HELPER)
    path = place / "same.yaml"
    path.write_text(SAME.format(numbers=list(range(10_000))))
    return path


def peak_bytes(spec: Path, store: Path, *more: str) -> float:
    """Return the peak memory of a build's own process, without its workers."""
    arguments = build_command(spec, store, *more)[4:]
    done = subprocess.run(
        [*PYTHON, "-c", MEASURED, *arguments], capture_output=True, check=True, text=True
    )
    code, size_bytes = json.loads(done.stdout.splitlines()[-1])
    if code:
        raise SystemExit(f"the build ended with exit code {code}")
    return float(size_bytes)


def one_changed(place: Path, options: argparse.Namespace) -> list[Figure]:
    """Change one kernel of 1,001 before each build."""
    spec, store, changes = write_spec(place, 1000), place / "store", count(1)
    fill(Store(store), spec)
    spec.write_text(spec.read_text() + ONE_MORE)
    single = [one for one in write_single(spec, 0) if one.name == "single"]
    timed_process(build_command(spec, store))

    def ours() -> float:
        write_single(spec, next(changes))
        return timed_process(build_command(spec, store))

    works = {"one changed of 1,001": ours, "JAX and that kernel alone": plain_jax(place, single)}
    works["JAX and that kernel alone"]()
    times = in_turn(works, options.rounds + 2, warm_up=False)
    return [*medians(times), Figure("one changed / alone", ratio(times, *works), goal=1.3)]


def write_single(spec: Path, number: int) -> list[Variant]:
    """Write the kernel of the last variant, different for each number; return all variants."""
    body = f"x_ref[part] + y_ref[part] + {number}.0"
    source = KERNEL.replace("x_ref[part] + y_ref[part]", body)
    (spec.parent / "single.py").write_text(source)
    return expand(load_yaml(spec))


PARTS = {"jobs": two_processes, "memory": memory, "changed": one_changed}


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, only=tuple(PARTS), rounds=3, misses=200))
