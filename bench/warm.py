"""`pallasc warm` against compiling in the program, and starts with an empty and a full cache.

There are ten programs: five of `tests/xla_client/programs`, in two sizes each. They start on XLA's
CUDA client with the stand-in driver, which takes no time. Goals: with a full cache, a program
compiles no modules; over all programs, `warm` takes at most 1.1 times as long as JAX itself.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from harness import PYTHON, ROOT, Figure, run_benchmark

sys.path += [str(ROOT / "tests" / name) for name in ("xla_client", "runtime")]

SIZES = {
    "training": ("SIZE = 256", "SIZE = 512", "f32[256]", "f32[512]"),
    "sampler": ("(64, 64)", "(64, 96)", "", ""),
    "two_devices": ("(8, 128)", "(8, 256)", "f32[8, 128]", "f32[8, 256]"),
    "settings": ("(8", "(16", "f64[8]", "f64[16]"),
    "attention": ("(1, 256, 2, 64)", "(1, 512, 2, 64)", "[1, 256, 2, 64]", "[1, 512, 2, 64]"),
}
"""For each program: a text and its replacement in the second size, then the same for its spec."""


def measure(options: argparse.Namespace, place: Path) -> Sequence[Figure]:
    """Start each program with an empty cache, run `warm`, and start each with a full cache."""
    import standin_gpu

    folders = [_programs(place / name, second=name == "second") for name in ("first", "second")]
    figures = []
    own_s = warm_s = 0.0
    for folder in folders:
        for name, devices in standin_gpu.DEVICES.items():
            variables = standin_gpu.environment(devices=devices)
            command = [*PYTHON, "-m", "pallasc", "machine"]
            made = subprocess.run(command, env=variables, capture_output=True, check=True)
            (folder / f"{name}.json").write_bytes(made.stdout)
        starts = {"cold": {}, "warm": {}}
        for kind in starts:
            if kind == "warm":
                warm_s += _warm(folder)
            for program in SIZES:
                devices = standin_gpu.DEVICES["two" if program == "two_devices" else "one"]
                variables = standin_gpu.started_with(
                    folder / kind, standin_gpu.environment(devices=devices)
                )
                started = standin_gpu.start(folder / f"{program}.py", variables)
                starts[kind][program] = started
        own_s += sum(started.compile_s for started in starts["cold"].values())
        for program in SIZES:
            for kind in starts:
                started, label = starts[kind][program], f"{program}, {folder.name} size, {kind}"
                goal = {"goal": 0} if kind == "warm" else {}
                figures.append(Figure(f"{label}: modules", started.compiled, **goal))
                figures.append(Figure(f"{label}: seconds", started.seconds))
    figures += [
        Figure("compiling in the programs, seconds", own_s),
        Figure("warm, seconds", warm_s),
    ]
    return [*figures, Figure("warm / compiling in the programs", warm_s / own_s, goal=1.1)]


def _programs(folder: Path, *, second: bool) -> Path:
    """Write the programs and their spec in one of the two sizes; return the folder."""
    folder.mkdir()
    source = ROOT / "tests" / "xla_client" / "programs"
    # The last programs need other libraries, and are not run.
    spec = (source / "programs.yaml").read_text().partition("  - name: product\n")[0]
    for program, (text, other, in_spec, other_in_spec) in SIZES.items():
        code = (source / f"{program}.py").read_text()
        assert text in code
        (folder / f"{program}.py").write_text(code.replace(text, other) if second else code)
        if second and in_spec:
            spec = re.sub(re.escape(in_spec), other_in_spec, spec)
    (folder / "programs.yaml").write_text(spec)
    return folder


def _warm(folder: Path) -> float:
    """Run `pallasc warm` in one process; return the sum of the programs' seconds."""
    command = [
        *PYTHON, "-m", "pallasc", "warm", "programs.yaml", "--cache-dir", "warm", "--jobs", "1",
        "--store", "store", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=folder, capture_output=True, check=True)
    return sum(variant["seconds"] for variant in json.loads(done.stdout)["variants"])


if __name__ == "__main__":
    sys.exit(run_benchmark(__doc__, measure, rounds=1))
