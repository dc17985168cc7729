"""Make the folder that `check_gpu.py` needs on a machine with a GPU but without pallasc.

Usage: pack.py FOLDER [--there FILE] [--targets h100-sxm] [-k TEXT] [--store STORE]

The folder has bundles of the library kernels and of JAX's own kernels with all their tunings; a
package with a bundle; a function exported with `jax.export`; the wheels of pallasc and of the
packages that it needs; and the scripts. `MANIFEST.json` has the digest of each file. Packing needs
a C compiler, and the network for other packages' wheels; it needs no GPU.

FILE is the output of `python3 -m pip list --format=freeze` on that machine: the folder leaves out
these packages. JAX must have the same version here and there, because it compiles the same kernels
on that machine.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT / "tests" / "runtime")]

from part_machine import PACKAGES, installed  # noqa: E402
from schedule import say  # noqa: E402

MOST_BYTES = 64 << 20
ADD = "add[m=1024,"
"""The kernel that `part_calls.py` calls, which is always packed."""
_NOT_TUNED = frozenset({"dtype", "head", "causal", "kv_heads"})
"""Parameters of JAX's kernels that change the result; the others are tunings."""

_WHEEL_FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
_GLIBC = (39, 35, 34, 31, 28, 27, 26, 24, 17)
_EPOCH = "315619200"  # 2 January 1980, the first day that every time zone has in a zip file


# ---- kernels


Built = tuple[Any, Any, bool]
"""A variant, its artifact, and True if it is a tuning of one of JAX's kernels."""


def compiled(options: argparse.Namespace, store: Path) -> list[Built]:
    """Build the chosen variants that run on one GPU."""
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.build import build
    from pallasc.specs.loading.matrix import expand
    from pallasc.specs.loading.yaml_loader import load_yaml

    tunings = ROOT / "examples" / "jax_tuning.yaml"
    library = sorted((ROOT / "specs" / "library").glob("*.yaml"))
    variants = [
        (variant, file == tunings)
        for file in (*library, tunings)
        for variant in expand(load_yaml(file))
        if variant.target.name in options.targets and not variant.mesh
        if any(text in variant.id for text in (*(options.only or [""]), ADD))
    ]
    report = build([variant for variant, _ in variants], store=Store(store))
    if report.failed:
        raise SystemExit(f"pack: {report.failed[0].variant.id}: {report.failed[0].error}")
    results = zip(report.results, variants, strict=True)
    return [(result.variant, result.artifact, is_tuning) for result, (_, is_tuning) in results]


def pack_kernels(folder: Path, built: Sequence[Built]) -> None:
    """Write all bundles, and the list of variants; a bundle of tunings is a job of `tune run`."""
    bundles: dict[str, list[Built]] = {}
    rows = []
    for variant, artifact, is_tuning in built:
        name = f"tune/{variant.name}.pallasc" if is_tuning else "library.pallasc"
        bundles.setdefault(name, []).append((variant, artifact, is_tuning))
        rows.append(_row(variant, name, is_tuning))
    for name, own in bundles.items():
        write_bundle(folder / name, own)
    package = folder / "package" / "gpu_check_ops"
    adding = [one for one in bundles["library.pallasc"] if one[0].name == "add"]
    write_bundle(package / "kernels.pallasc", adding)
    (package / "__init__.py").write_text('"""Kernels of a package that pallasc.load opens."""\n')
    (folder / "variants.json").write_text(json.dumps(rows, indent=1))
    say(f"{len(rows)} variants")


def _row(variant: Any, bundle: str, is_tuning: bool) -> dict[str, Any]:
    """Return the description of a variant for `carried.py`."""
    import msgspec

    from pallasc.specs.spec import plain_args

    return {
        "id": variant.id,
        "arch": variant.target.arch,
        "bundle": bundle,
        "is_tuning": is_tuning,
        **{name: getattr(variant, name) for name in ("name", "params", "entry", "static")},
        "args": {name: plain_args(own) for name, own in variant.args.items()},
        "tolerance": msgspec.to_builtins(variant.tolerance),
    }


def write_bundle(path: Path, built: Iterable[Built]) -> None:
    """Write a bundle."""
    from pallasc.specs.bundle.manifest import Item
    from pallasc.specs.bundle.writer import build_bundle
    from pallasc.specs.tuning import Tuning

    items = []
    for rank, (variant, artifact, is_tuning) in enumerate(built, 1):
        params = dict(variant.params)
        by = tuple(name for name in params if name in _NOT_TUNED)
        over = tuple(name for name in params if name not in _NOT_TUNED)
        tuning = Tuning(by=by, over=over, rank=rank) if is_tuning else None
        items.append(Item(variant.name, params, artifact, tuning=tuning))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(build_bundle(items))


def pack_export(folder: Path, bundle: Path) -> None:
    """Export the kernel `add` with `jax.export`, if a C compiler is installed."""
    import jax.export
    import native_build

    import pallasc

    if reason := native_build.why_not():
        say(f"no export: {reason}")
        return
    os.environ.setdefault("PALLASC_NATIVE", str(native_build.build()))
    jax.config.update("jax_traceback_in_locations_limit", 0)  # no names of folders in files
    kernel = pallasc.open_bundle(bundle)["add"].variant(m=1024, dtype="f32")
    types = [jax.ShapeDtypeStruct((1024, 4096), "float32")] * 2
    exporting = jax.export.export(
        jax.jit(kernel),
        platforms=["cuda", "cpu"],
        disabled_checks=pallasc.jax_export_checks(),
    )
    (folder / "add.jax").write_bytes(exporting(*types).serialize())


def pack_launches(file: Path, target: str) -> None:
    """Write a bundle of an empty kernel over four arrays, whose launches are timed."""
    import made

    from pallasc.specs.bundle.manifest import Item
    from pallasc.specs.bundle.writer import build_bundle

    inputs = dict.fromkeys("abc", "f32[4, 64]")
    four = made.artifact(made.launch("four", 0, 1, 2, 3), inputs=inputs, target=target)
    file.write_bytes(build_bundle([Item("four", {}, four)]))


# ---- wheels


def plain(name: str) -> str:
    """Return a package's name in the form for comparisons."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read_there(file: Path) -> dict[str, str]:
    """Return the packages of `pip list --format=freeze` by name.

    Raises:
        SystemExit: the file lists no packages.
    """
    lines = re.findall(r"^([\w.-]+)(?:==| @ )(.+)$", file.read_text(), re.MULTILINE)
    if not lines:
        raise SystemExit(
            f"pack: {file} does not list packages.\n"
            "  Write the file with: python3 -m pip list --format=freeze"
        )
    return {plain(name): value for name, value in lines}


def pack_wheels(folder: Path, python: str | None, there: Iterable[str]) -> None:
    """Build the wheel of pallasc, and download its requirements that are missing there."""
    folder.mkdir()
    build_wheel(folder)
    (own,) = folder.glob("*.whl")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:"]
    pinned = f"cuda-bindings=={version('cuda-bindings')}"
    command += ["--dest", str(folder), str(own), pinned, "numpy", "ml-dtypes"]  # for the scripts
    if python:
        command += ["--implementation", "cp", "--python-version", python]
        for minor in _GLIBC:
            command += ["--platform", f"manylinux_2_{minor}_x86_64"]
        command += ["--platform", "manylinux2014_x86_64"]
    subprocess.run(command, check=True)
    for wheel in set(folder.glob("*.whl")) - {own}:
        if plain(wheel.name.partition("-")[0]) in there:
            wheel.unlink()


def build_wheel(folder: Path) -> None:
    """Build the wheel of pallasc from a copy, as building writes files next to the sources."""
    with tempfile.TemporaryDirectory(prefix="pallasc-pack-") as name:
        sources = Path(name) / "sources"
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "pallasc", sources / "pallasc", ignore=ignored)  # links too
        for file in _WHEEL_FILES:
            shutil.copy(ROOT / file, sources)
        build = [sys.executable, "-P", "-m", "build", "--wheel", "--no-isolation"]
        subprocess.run(
            [*build, "--outdir", str(folder), str(sources)],
            env={**os.environ, "SOURCE_DATE_EPOCH": _EPOCH},
            stdout=subprocess.DEVNULL,
            check=True,
        )


# ---- the folder


def write_manifest(folder: Path, targets: Sequence[str]) -> int:
    """Write the digests of all files; return the total size in bytes."""
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    total = sum((folder / name).stat().st_size for name in files)
    digest = hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()
    versions = installed(PACKAGES)
    report = {"digest": digest, "targets": targets, "versions": versions, "files": files}
    (folder / "MANIFEST.json").write_text(json.dumps(report, indent=1, sort_keys=True))
    return total


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--there", type=Path, help="packages of the machine with the GPU")
    parser.add_argument("--targets", type=lambda text: text.split(","), default=["h100-sxm"])
    parser.add_argument(
        "-k", dest="only", action="append", help="only variants with this in their id; repeatable"
    )
    parser.add_argument("--store", type=Path, help="a store with compiled kernels")
    parser.add_argument("--no-wheels", action="store_true", help="all packages are there already")
    parser.add_argument("--python-version", help="of the machine with the GPU, if it differs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Make the folder; 1 if it is larger than `MOST_BYTES`, 2 if it exists."""
    options = parse(arguments)
    folder: Path = options.folder
    there = read_there(options.there) if options.there else {}
    if there.get("jax", version("jax")) != version("jax"):
        raise SystemExit(
            f"pack: JAX {version('jax')} is installed here, and {there['jax']} on the machine with "
            "the GPU: JAX's kernels would be different code.\n"
            f'  Pack with: pip install "pallasc[cuda13,dev]" jax=={there["jax"]}'
        )
    if folder.exists():
        say(f"pack: {folder} already exists: name a new folder, or remove it.")
        return 2
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="pallasc-pack-") as name:
        pack_kernels(folder, compiled(options, options.store or Path(name)))
    pack_export(folder, folder / "package" / "gpu_check_ops" / "kernels.pallasc")
    pack_launches(folder / "launch.pallasc", options.targets[0])
    if not options.no_wheels:
        pack_wheels(folder / "wheels", options.python_version, there)
    for script in sorted(set(HERE.glob("*.py")) - {Path(__file__).resolve()}):
        shutil.copy(script, folder)
    total = write_manifest(folder, options.targets)
    say(f"{total / (1 << 20):.1f} MiB in {folder}")
    return 0 if total < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
