"""What two processes gain, what each further variant costs, and what one change costs.

* 200 misses: `--jobs 2` must be at least 1.8 times as fast as `--jobs 1`, on two cores. They are
  kernels of the library and of JAX (`library_mix`), which take some tenths of a second each. Beside
  it, without a goal, 200 of the smallest kernel there is, of some 80 ms each: there, what both runs
  begin with (importing JAX, once or twice, and hashing the toolchain) weighs more.
* The command line process: CPU time and memory for each variant, up to 10,000 of them in the store,
  at most 200 MB, with `--json` and `--junit` too; and the same for 10,000 that are not there. Those
  are misses that real workers lower, one by one; all have one module, so one is compiled.
* One kernel changed among 1,000 variants: at most 1.3 times a script that imports JAX and compiles
  that kernel alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from cold_build import RIVAL
from filled_store import HELPER, KERNEL, fill, write_spec
from harness import Figure, median_ratio, paired, run_benchmark, timed_process
from library_mix import write_mix

from pallasc.cache.store import Store
from pallasc.compiler.toolchain.setup import prepare
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml
from pallasc.specs.spec import variant_to_json

MEASURED = """
import json, resource, sys
from pallasc.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
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


def measure(options: argparse.Namespace) -> Sequence[Figure]:
    """Measure all of it, or the parts that `--only` names."""
    with tempfile.TemporaryDirectory(prefix="pallasc-bench-") as folder:
        figures = []
        for name in options.only or PARTS:
            figures += PARTS[name](Path(folder) / name, options)
        return figures


def _two_processes(place: Path, options: argparse.Namespace, *, tiny: bool = False) -> list[Figure]:
    spec = (write_spec if tiny else write_mix)(place, options.misses)
    stores = iter(range(10_000))

    def build(jobs: int) -> float:
        store = place / f"store{next(stores)}"
        command = [*_command(spec, store), "--jobs", str(jobs)]
        return timed_process(command, stderr=subprocess.DEVNULL)

    single, two = paired(lambda: build(1), lambda: build(2), options.rounds)
    name = f"{options.misses} {'smallest kernels' if tiny else 'misses'}"
    return [
        Figure(f"{name}, --jobs 1", statistics.median(single), "s"),
        Figure(f"{name}, --jobs 2", statistics.median(two), "s"),
        Figure(
            f"{name}, --jobs 1 / --jobs 2",
            median_ratio(single, two),
            goal=None if tiny else 1.8,
            at_least=True,
        ),
    ]


def _two_processes_tiny(place: Path, options: argparse.Namespace) -> list[Figure]:
    return _two_processes(place, options, tiny=True)


def _each_variant(place: Path, _: argparse.Namespace) -> list[Figure]:
    """Measure the command line process over builds of growing size."""
    used = {}
    for count in (1000, 10_000):
        spec = write_spec(place / f"spec{count}", count)
        store = place / f"store{count}"
        fill(Store(store), spec)
        used[count] = _used(spec, store)
    reports = ("--json", "--junit", str(place / "report.xml"))
    hits = _used(spec, store, *reports)
    misses = _used(write_same(place / "same", 10_000), place / "empty", *reports)
    compiled = _used(write_spec(place / "compiled", 50), place / "cold", "--jobs", "1")
    few = _used(write_spec(place / "few", 10), place / "colder", "--jobs", "1")
    cpu_s = (used[10_000][0] - used[1000][0]) / 9000
    return [
        Figure("CPU time of a further hit", cpu_s * 1e6, "us"),
        Figure("CPU time of a further compilation", (compiled[0] - few[0]) / 40 * 1e3, "ms"),
        Figure("memory of a further hit", (used[10_000][1] - used[1000][1]) / 9000 / 1024, "kB"),
        Figure("memory with 10,000 hits", used[10_000][1] / 1e6, "MB", goal=200),
        Figure("CPU time of --json and --junit, 10,000 hits", hits[0] - used[10_000][0], "s"),
        Figure("memory with these two, 10,000 hits", hits[1] / 1e6, "MB", goal=200),
        Figure("memory with these two, 10,000 misses", misses[1] / 1e6, "MB", goal=200),
        Figure("CPU time of a further miss that is lowered", misses[0] / 10_000 * 1e3, "ms"),
    ]


def write_same(place: Path, count: int) -> Path:
    """Write a spec of variants that have different keys and, once they are lowered, one module."""
    place.mkdir(parents=True, exist_ok=True)
    (place / "kernel.py").write_text(
        f"{KERNEL}\n\ndef numbered(x, y, *, number):\n    return add(x, y, block_size=128)\n"
    )
    (place / "helper.py").write_text(HELPER)
    path = place / "same.yaml"
    path.write_text(SAME.format(numbers=list(range(count))))
    return path


def _used(spec: Path, store: Path, *more: str) -> tuple[float, float]:
    """Return CPU seconds and the most memory of a build's own process, without its workers."""
    command = [sys.executable, "-P", "-c", MEASURED, *_command(spec, store)[4:], *more]
    told = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True
    )
    code, cpu_s, peak_bytes = json.loads(told.stdout.splitlines()[-1])
    if code:
        raise SystemExit(f"the build ended with exit code {code}")
    return cpu_s, peak_bytes


def _one_changed(place: Path, options: argparse.Namespace) -> list[Figure]:
    spec = write_spec(place, 1000)
    store = place / "store"
    fill(Store(store), spec)
    spec.write_text(spec.read_text() + ONE_MORE)
    source = place / "single.py"
    single = [v for v in _write_single(source, spec, 0) if v["name"] == "single"]
    (place / "variants.json").write_text(json.dumps(single))
    (place / "rival.py").write_text(RIVAL)
    command = _command(spec, store)
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    changes = iter(range(1, 10_000))

    def ours() -> float:
        _write_single(source, spec, next(changes))
        return timed_process(command, stderr=subprocess.DEVNULL)

    with prepare() as setup:
        environment = dict(setup.environment)
        rival = [sys.executable, "-P", str(place / "rival.py"), str(place / "variants.json")]

        def theirs() -> float:
            return timed_process(rival, env=environment)

        theirs()
        mine, others = paired(ours, theirs, options.rounds + 2)
    return [
        Figure("one changed of 1,001", statistics.median(mine), "s"),
        Figure("JAX and that kernel alone", statistics.median(others), "s"),
        Figure("one changed / alone", median_ratio(mine, others), goal=1.3),
    ]


def _write_single(source: Path, spec: Path, number: int) -> list[dict[str, object]]:
    """Write a kernel that no other variant uses, each time another one; return the variants."""
    body = f"x_ref[part] + y_ref[part] + {number}.0"
    source.write_text(KERNEL.replace("x_ref[part] + y_ref[part]", body))
    return [variant_to_json(variant) for variant in expand(load_yaml(spec))]


def _command(spec: Path, store: Path) -> list[str]:
    return [
        sys.executable, "-P", "-m", "pallasc", "build", str(spec), "--store", str(store)
    ]  # fmt: skip


PARTS = {
    "jobs": _two_processes,
    "smallest": _two_processes_tiny,
    "each": _each_variant,
    "changed": _one_changed,
}


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", action="append", choices=PARTS, help="measure only this part")
    parser.add_argument("--rounds", type=int, default=3, help="how often each is timed")
    parser.add_argument("--misses", type=int, default=200, help="how many variants are compiled")


if __name__ == "__main__":
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as an installed package has it
    sys.exit(run_benchmark(__doc__ or "", measure, _options))
