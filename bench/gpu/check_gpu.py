"""Check pallasc on a machine with an NVIDIA GPU: everything that the stand-in cannot tell.

Usage: python3 check_gpu.py [--out FILE] [--parts numbers,codes,launch,start,time] [-k TEXT]

It lies in a folder that `pack.py` made on a machine without a GPU, and takes everything from there:
no network, no compiler. Python packages that are missing here are installed from the folder's
wheels into a temporary place. The parts, each in a process of its own:

* `numbers`: every kernel with random inputs against numpy
* `codes`: what the stand-in driver models, provoked on the real one, beside the stand-in's answers
* `launch`: what a launch costs the caller
* `start`: from the start of a process to its first result, against JAX's just-in-time path
* `time`: how long kernels run, launched by pallasc and by JAX

JAX is used where it is installed and has a GPU, torch too. One JSON object is written after each
part, with date and machine; a part that fails, or has no time left, is in it with its error.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_LIMIT_S = 570  # of ten minutes, with some time to end


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# ---- the parts; each returns what goes into the JSON


def _variants(options: argparse.Namespace) -> list[Any]:
    """Return the variants that run on this GPU and that were asked for."""
    from carried import fitting, read_variants

    from pallasc.runtime.devices import get_device

    device = get_device(0)
    chosen = fitting(read_variants(options.folder), device.major, device.minor)
    return [one for one in chosen if options.only in one.id]


def _firsts(variants: Sequence[Any]) -> list[Any]:
    """Return the first variant of each kernel."""
    return list({one.name: one for one in reversed(variants)}.values())[::-1]


def check_numbers_part(options: argparse.Namespace) -> Any:
    """Compare every kernel with numpy."""
    from right_numbers import check_numbers

    return check_numbers(_variants(options), options.rows, _say)


def check_codes_part(options: argparse.Namespace) -> Any:
    """Compare the answers of this driver with those of the stand-in."""
    from error_codes import compare_answers, run_cases, table

    codes = options.folder / "codes"
    found = run_cases(codes, os.environ, names=options.cases, say=_say)
    known = json.loads((codes / "standin.json").read_text())
    rows = compare_answers(found, {name: known.get(name, {}) for name in found})
    _say("\n".join(table(rows)))
    return rows


def measure_launch_part(options: argparse.Namespace) -> Any:
    """Time launches."""
    from launch_cost import measure_launches

    found = measure_launches(options.folder, launches=options.launches, repeats=options.repeats)
    for name, row in found["launches"].items():
        _say(f"{row['ns']:9.0f} ns  {row['to_raw']:6.2f} times the raw call  {name}")
    return found


def measure_start_part(options: argparse.Namespace) -> Any:
    """Time processes until their first result."""
    from first_result import measure_starts

    chosen = [one for one in _firsts(_variants(options)) if one.name in options.started]
    rows = measure_starts(
        options.folder, chosen, rounds=options.rounds, environment=dict(os.environ)
    )
    for row in rows:
        ratio = row.get("jax_to_pallasc")
        text = row.get("jax error", "") if ratio is None else f"JAX takes {ratio:.1f} times that"
        _say(f"{row.get('pallasc_s', float('nan')):6.2f} s  {row['variant']}  {text}")
    return rows


def measure_time_part(options: argparse.Namespace) -> Any:
    """Time kernels."""
    from kernel_time import measure_kernels

    chosen = _firsts(_variants(options))
    return measure_kernels(chosen, rounds=options.rounds, launches=options.launches, say=_say)


PARTS: Mapping[str, Callable[[argparse.Namespace], Any]] = {
    "numbers": check_numbers_part,
    "codes": check_codes_part,
    "launch": measure_launch_part,
    "start": measure_start_part,
    "time": measure_time_part,
}
_STARTED = ("jax_hopper_matmul", "jax_blackwell_matmul", "rms_norm")


# ---- the machine


def describe_machine() -> dict[str, Any]:
    """Return what this machine is."""
    from importlib.metadata import PackageNotFoundError, version

    from pallasc.runtime.devices import get_device

    device = get_device(0)
    versions = {}
    for name in ("pallasc", "cuda-bindings", "jax", "jaxlib", "torch", "numpy", "nvidia-cuda-nvcc"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    return {
        "gpu": device.name,
        "capability": f"{device.major}.{device.minor}",
        "sm_count": device.sm_count,
        "smem_optin_bytes": device.smem_optin_bytes,
        "driver_api": device.driver_version,
        "driver": _driver_package(),
        "machine": platform.machine(),
        "system": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "versions": versions,
    }


def _driver_package() -> str:
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return ""
    return text.splitlines()[0]


# ---- processes


def install_missing(folder: Path, site: Path) -> list[str]:
    """Install those of the folder's wheels whose packages are missing; return their names."""
    from importlib.metadata import PackageNotFoundError, version

    missing = []
    for wheel in sorted((folder / "wheels").glob("*.whl")):
        try:
            version(wheel.name.partition("-")[0])
        except PackageNotFoundError:
            missing.append(wheel)
    if missing:
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        alone = ["--no-index", "--no-deps", "--target", str(site), *map(str, missing)]
        subprocess.run([*pip, *alone], check=True)
    return [wheel.name for wheel in missing]


def run_part(
    name: str, arguments: Sequence[str], environment: Mapping[str, str], limit_s: float
) -> Any:
    """Run a part in a process of its own; return what it found, or its error."""
    _say(f"---- {name}")
    if limit_s <= 0:
        return {"error": "no time was left for it"}
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-P", __file__, *arguments, "--part", name, "--out", file.name]
        try:
            done = subprocess.run(command, env=environment, check=False, timeout=limit_s)
            found = json.loads(Path(file.name).read_text() or "null")
            return found if done.returncode == 0 else {"error": f"exit status {done.returncode}"}
        except (subprocess.TimeoutExpired, ValueError) as error:
            return {"error": str(error)}


def run_here(options: argparse.Namespace) -> Any:
    """Run one part in this process."""
    sys.path.insert(0, str(HERE))
    if options.part == "machine":
        return describe_machine()
    try:
        return PARTS[options.part](options)
    except Exception as error:  # noqa: BLE001 - it belongs into the report
        return {"error": f"{type(error).__name__}: {error}"}


def check(options: argparse.Namespace, arguments: Sequence[str]) -> dict[str, Any]:
    """Run all parts; return the whole report."""
    began = time.monotonic()

    def run(name: str) -> Any:
        return run_part(name, arguments, environment, began + options.limit_s - time.monotonic())

    with tempfile.TemporaryDirectory(prefix="pallasc-gpu-") as site:
        installed = [] if options.no_install else install_missing(options.folder, Path(site))
        path = [site, os.environ.get("PYTHONPATH", "")]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, path)),
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # JAX shares the GPU with what is measured
        }
        report = {
            "schema": 1,
            "date": time.strftime("%Y-%m-%d"),
            "machine": run("machine"),
            "installed": installed,
            "packed": _packed(options.folder),
        }
        for name in options.parts:
            report[name] = run(name)
            report["seconds"] = time.monotonic() - began
            _write(report, options.out)  # whatever becomes of the next part
    return report


def _write(report: Any, file: Path | None) -> None:
    if file is not None:
        file.write_text(json.dumps(report, indent=1, sort_keys=True) + "\n")


def _packed(folder: Path) -> Any:
    """Return what the folder says of itself, without the list of its files."""
    known = json.loads((folder / "MANIFEST.json").read_text())
    return {name: value for name, value in known.items() if name != "files"}


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=HERE, help="what pack.py made")
    parser.add_argument("--out", type=Path, help="where the JSON goes, standard output without")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("-k", dest="only", default="", help="only variants with this in their id")
    parser.add_argument("--cases", type=lambda t: t.split(","), help="only these cases of codes")
    parser.add_argument(
        "--started", type=lambda t: t.split(","), default=_STARTED, help="kernels of the part start"
    )
    parser.add_argument("--rows", type=int, default=96, help="rows that are compared with numpy")
    parser.add_argument("--rounds", type=int, default=3, help="how often times are taken")
    parser.add_argument("--limit-s", type=float, default=_LIMIT_S, help="seconds for all parts")
    parser.add_argument("--launches", type=int, default=200, help="launches that are timed at once")
    parser.add_argument("--repeats", type=int, default=25, help="how often launches are timed")
    parser.add_argument("--no-install", action="store_true", help="all packages are here")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Check, write the JSON; 1 where a number is wrong or a part has failed."""
    options = parse(arguments)
    report = run_here(options) if options.part else check(options, arguments)
    _write(report, options.out)
    if options.out is None:
        print(json.dumps(report, indent=1, sort_keys=True))
    return 0 if options.part or _is_good(report) else 1


def _is_good(report: Mapping[str, Any]) -> bool:
    parts = [part for part in report.values() if isinstance(part, dict) and "error" in part]
    return not parts and all(row.get("right") for row in report.get("numbers", []))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
