"""Make the folder that `check_gpu.py` needs on a machine with a GPU, and with nothing else of ours.

Usage: pack.py FOLDER [--targets h100-sxm] [-k TEXT] [--store STORE] [--no-wheels]

In it are the library kernels and JAX's own, compiled; a wheel of pallasc and those of the packages
that it needs; cubins for the cases of `error_codes.py` with what the stand-in driver answers; the
scripts. It takes no GPU, and the network for the wheels of others only. The same sources, tools and
versions give the same bytes: `MANIFEST.json` has a digest of each file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "runtime")]

MOST_BYTES = 64 << 20
_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
_PACKAGES = ("numpy", "ml_dtypes", "cuda-bindings", "cuda-pathfinder", "click", "PyYAML")
_EPOCH = "315619200"  # 2 January 1980, the first day that every time zone has in a zip file


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def pack_kernels(folder: Path, targets: Sequence[str], only: str, store: Path) -> None:
    """Build the variants and write their artifacts."""
    from carried import write_artifact

    from pallasc.cache.store import Store
    from pallasc.compiler.build import build
    from pallasc.specs.matrix import expand
    from pallasc.specs.yaml_loader import load_yaml

    files = sorted((ROOT / "specs" / "library").glob("*.yaml"))
    variants = [one for file in files for one in expand(load_yaml(file))]
    chosen = [one for one in variants if one.target.name in targets and only in one.id]
    report = build(chosen, store=Store(store))
    rows = []
    for result in report.results:
        if result.artifact is None:
            raise SystemExit(f"pack: {result.variant.id} was not built: {result.error}")
        rows.append(_row(result.variant, write_artifact(folder, result.artifact)))
    (folder / "variants.json").write_text(json.dumps(rows, indent=1))
    _say(f"{len(rows)} kernels")


def _row(variant: Any, digest: str) -> dict[str, Any]:
    """Return what the GPU's machine must know of a variant."""
    from pallasc.specs.wire import variant_to_json

    data = variant_to_json(variant)
    return {
        "id": variant.id,
        "name": variant.name,
        "params": [list(pair) for pair in variant.params],
        "artifact": digest,
        **{name: data[name] for name in ("entry", "args", "static", "tolerance")},
    }


def pack_codes(folder: Path, capability: str, cases: Sequence[str] | None) -> None:
    """Assemble what the cases load, and write what the stand-in answers."""
    import rig
    import standin
    from error_codes import run_cases
    from ground import ARCHITECTURES

    folder.mkdir()
    for arch in ARCHITECTURES:
        (folder / f"{arch}.cubin").write_bytes(rig.cubin(arch))
    environment = standin.environment(devices=capability)
    answers = run_cases(folder, environment, names=cases, say=_say)
    (folder / "standin.json").write_text(json.dumps(answers, indent=1, sort_keys=True))


def pack_launches(folder: Path) -> None:
    """Write the kernels whose launches are timed; they do nothing."""
    import made
    from carried import write_artifact

    pointers = made.artifact(
        made.launch("four", 0, 1, 2, 3), inputs=dict.fromkeys("abc", "f32[4, 64]")
    )
    maps = made.maps(*[made.tensor_map(number) for number in range(4)])
    mapped = made.artifact(
        made.launch("mapped", 0, maps),
        inputs=dict.fromkeys("abc", "f16[32, 64]"),
        outputs=["f16[32, 64]"],
    )
    names = {"four": write_artifact(folder, pointers), "mapped": write_artifact(folder, mapped)}
    lines = [f"{name} {digest}\n" for name, digest in names.items()]
    (folder / "names").write_text("".join(lines))


def pack_wheels(folder: Path, python: str | None) -> None:
    """Build the wheel of pallasc and download those of what it needs on the GPU's machine."""
    folder.mkdir()
    build_wheel(folder)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    wheels = ["--only-binary=:all:", "--no-deps", "--dest", str(folder)]
    if python:
        wheels += ["--python-version", python]
    subprocess.run([*command, *wheels, *map(_pinned, _PACKAGES)], check=True)


def build_wheel(folder: Path) -> None:
    """Build the wheel of pallasc from a copy, as building leaves files beside the sources."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["setuptools"]
    parts = sorted({Path(place).parts[0] for place in settings["package-dir"].values()})
    with tempfile.TemporaryDirectory(prefix="pallasc-pack-") as name:
        sources = Path(name) / "sources"
        for part in parts:
            shutil.copytree(
                ROOT / part, sources / part, ignore=shutil.ignore_patterns("__pycache__")
            )
        for file in _FILES:
            shutil.copy(ROOT / file, sources)
        build = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation"]
        subprocess.run(
            [*build, "--outdir", str(folder), str(sources)],
            env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH},
            stdout=subprocess.DEVNULL,
            check=True,
        )


def _pinned(name: str) -> str:
    """Return a package with the version that is installed here."""
    try:
        return f"{name}=={version(name)}"
    except PackageNotFoundError:
        return name


def write_manifest(folder: Path, **more: Any) -> int:
    """Write digests and sizes of all files; return the bytes together."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    listed = {
        path.relative_to(folder).as_posix(): {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "bytes": path.stat().st_size,
        }
        for path in files
    }
    total = sum(row["bytes"] for row in listed.values())
    everything = hashlib.sha256(json.dumps(listed, sort_keys=True).encode()).hexdigest()
    report = {**more, "digest": everything, "bytes": total, "files": listed}
    (folder / "MANIFEST.json").write_text(json.dumps(report, indent=1, sort_keys=True))
    return total


def _versions() -> dict[str, str]:
    found = {}
    for name in ("pallasc", "jax", "jaxlib", "nvidia-cuda-nvcc", "cuda-bindings"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--targets", type=lambda t: t.split(","), default=["h100-sxm"])
    parser.add_argument("-k", dest="only", default="", help="only variants with this in their id")
    parser.add_argument("--store", type=Path, help="where compiled kernels are kept, else nowhere")
    parser.add_argument("--capability", default="9.0", help="of the GPU that the stand-in is")
    parser.add_argument("--cases", type=lambda t: t.split(","), help="only these cases of codes")
    parser.add_argument("--no-wheels", action="store_true", help="the packages are there already")
    parser.add_argument("--python-version", help="of the GPU's machine, where it is another one")
    return parser.parse_args(arguments)


def pack(options: argparse.Namespace) -> int:
    """Make the folder; return its bytes."""
    folder: Path = options.folder
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="pallasc-pack-") as name:
        store = options.store or Path(name) / "store"
        pack_kernels(folder / "kernels", options.targets, options.only, store)
    pack_codes(folder / "codes", options.capability, options.cases)
    pack_launches(folder / "launch")
    if not options.no_wheels:
        pack_wheels(folder / "wheels", options.python_version)
    for script in sorted(HERE.glob("*.py")):
        if script.name != Path(__file__).name:
            shutil.copy(script, folder)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return write_manifest(folder, versions=_versions(), targets=options.targets)


def main(arguments: Sequence[str]) -> int:
    """Make the folder; 1 where it is too large to be carried."""
    options = parse(arguments)
    if options.folder.exists():
        _say(f"pack: {options.folder} is there already: name a new folder, or remove it.")
        return 2
    total = pack(options)
    _say(f"{total / (1 << 20):.1f} MiB in {options.folder}")
    return 0 if total < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
