"""Make the folder that `check_gpu.py` needs on a machine with a GPU, and with nothing else of ours.

Usage: pack.py FOLDER [--there FILE] [--targets h100-sxm] [-k TEXT] [--store STORE]

In it are the library kernels, JAX's own over their tunings, and a small package, compiled; a kernel
exported to C, compiled where a compiler is here; a wheel of pallasc and those of the packages that
it needs; cubins for the cases of `error_codes.py` with what the stand-in driver answers; the
scripts. It takes no GPU, and the network for the wheels of others only. The same sources, tools and
versions give the same bytes: `MANIFEST.json` has a digest of each file.

FILE is what `python3 -m pip list --format=freeze` prints on that machine: packages in it are left
out, and the JAX that packs must be the JAX there, as kernel times are compared with JAX's own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT / "tests" / "runtime")]

MOST_BYTES = 64 << 20
_NOT_TUNED = frozenset({"dtype", "head", "causal", "kv_heads"})
"""Parameters of JAX's kernels that are part of what is computed; the others are its tunings."""
_NOT_CARRIED = ("pack.py", "wheels.py")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compiled(
    files: Sequence[Path], store: Path, choose: Callable[[Any], bool]
) -> list[tuple[Any, Any]]:
    """Build the chosen variants of some specs; return each with its artifact."""
    from pallasc.cache.store import Store
    from pallasc.compiler.builds.build import build
    from pallasc.specs.loading.matrix import expand
    from pallasc.specs.loading.yaml_loader import load_yaml

    variants = [variant for file in files for variant in expand(load_yaml(file))]
    report = build([variant for variant in variants if choose(variant)], store=Store(store))
    for result in report.results:
        if result.artifact is None:
            raise SystemExit(f"pack: {result.variant.id} was not built: {result.error}")
    return [(result.variant, result.artifact) for result in report.results]


def pack_kernels(folder: Path, built: Sequence[tuple[Any, Any]]) -> None:
    """Write the artifacts of variants, and the list of them."""
    from carried import write_artifact

    rows = [_row(variant, write_artifact(folder, artifact)) for variant, artifact in built]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "variants.json").write_text(json.dumps(rows, indent=1))
    _say(f"{len(rows)} {folder.name}")


def _row(variant: Any, digest: str) -> dict[str, Any]:
    """Return what the GPU's machine must know of a variant."""
    from math import prod

    from pallasc.specs.spec import variant_to_json

    data = variant_to_json(variant)
    return {
        "id": variant.id,
        "name": variant.name,
        "params": [list(pair) for pair in variant.params],
        "arch": variant.target.arch,
        "devices": prod(size for _, size in variant.mesh),
        "artifact": digest,
        **{name: data[name] for name in ("entry", "args", "static", "tolerance")},
    }


def pack_package(folder: Path, built: Sequence[tuple[Any, Any]]) -> None:
    """Write a package with a bundle of the kernel that adds, and a second bundle for it."""
    from pallasc.specs.bundle.manifest import Item
    from pallasc.specs.bundle.writer import build_bundle

    adding = [pair for pair in built if pair[0].name == "add"]
    package, beside = folder / "gpu_check_ops", folder / "built"
    for place, name, chosen in (
        (package, "kernels", adding),
        (
            beside,
            "gpu_check_ops",
            [pair for pair in adding if dict(pair[0].params)["m"] == 1024],
        ),
    ):
        place.mkdir(parents=True)
        if chosen:
            items = [
                Item(variant.name, dict(variant.params), artifact) for variant, artifact in chosen
            ]
            (place / f"{name}.pallasc").write_bytes(build_bundle(items))
    (package / "__init__.py").write_text('"""Kernels of a package that pallasc.load opens."""\n')


def pack_jobs(folder: Path, built: Sequence[tuple[Any, Any]]) -> None:
    """Write a job for `pallasc tune run` of each kernel of which there are tunings for one GPU."""
    from pallasc.specs.bundle.manifest import Item
    from pallasc.specs.bundle.writer import build_bundle
    from pallasc.specs.tuning import Tuning

    folder.mkdir()
    kernels: dict[str, list[tuple[Any, Any]]] = {}
    for variant, artifact in built:
        if artifact.plan.device_count == 1:
            kernels.setdefault(variant.name, []).append((variant, artifact))
    for name, variants in kernels.items():
        items = []
        for rank, (variant, artifact) in enumerate(variants, 1):
            params = dict(variant.params)
            by = tuple(own for own in params if own in _NOT_TUNED)
            over = tuple(own for own in params if own not in _NOT_TUNED)
            tuning = Tuning(by=by, over=over, rank=rank)
            items.append(Item(name, params, artifact, tuning=tuning))
        (folder / f"{name}.pallasc").write_bytes(build_bundle(items))


def pack_exports(folder: Path, built: Sequence[tuple[Any, Any]]) -> None:
    """Write a bundle of a kernel that adds, and the C library of it where a compiler is here."""
    import c_exports
    import standin

    from pallasc.specs.bundle.manifest import Item
    from pallasc.specs.bundle.writer import build_bundle

    folder.mkdir()
    adding = [
        (variant, artifact)
        for variant, artifact in built
        if variant.name == "add" and {array.dtype for array in artifact.plan.inputs} == {"f32"}
    ]
    for variant, artifact in adding[:1]:
        (folder / "variant").write_text(variant.id)
        item = Item(variant.name, dict(variant.params), artifact)
        (folder / "add.pallasc").write_bytes(build_bundle([item]))
        if standin.compiler() is None:
            continue
        with tempfile.TemporaryDirectory(prefix="pallasc-pack-") as name:
            sources = c_exports.export(folder / "add.pallasc", Path(name) / "kernels")
            library = c_exports.build_with_cc(sources, Path(name) / "build")
            shutil.copy(library, folder / library.name)


def pack_codes(folder: Path, capability: str, cases: Sequence[str] | None) -> None:
    """Assemble what the cases load, and write what the stand-in answers."""
    import rig
    import standin
    from cases import CASES
    from error_codes import run_cases
    from ground import ARCHITECTURES

    folder.mkdir()
    for arch in ARCHITECTURES:
        (folder / f"{arch}.cubin").write_bytes(rig.cubin(arch))
    environment = standin.environment(devices=capability)
    answers = run_cases(folder, environment, names=cases, say=_say)
    known = {name: dict(CASES[name].environment) for name in answers}
    (folder / "cases.json").write_text(json.dumps(known, indent=1))
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
    """Return the versions of what has compiled the kernels."""
    from machine import ptxas_version

    from pallasc.compiler.toolchain.toolchain import find_toolchain

    found = {"ptxas": ptxas_version(str(find_toolchain().ptxas))}
    for name in ("pallasc", "jax", "jaxlib", "nvidia-cuda-nvcc", "cuda-bindings"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    return found


def check_jax(there: dict[str, str]) -> None:
    """Check that the JAX that packs is the one of the GPU's machine, where that has one.

    Raises:
        SystemExit: it is not.
    """
    here, wanted = version("jax"), there.get("jax", "")
    if wanted and wanted != here:
        raise SystemExit(
            f"pack: JAX {here} packs here, and the GPU's machine has {wanted}: JAX's own kernels "
            "would be other code.\n"
            f'  Pack with: pip install "pallasc[cuda13,dev]" jax=={wanted}, or with --any-jax.'
        )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="a new folder")
    parser.add_argument("--targets", type=lambda t: t.split(","), default=["h100-sxm"])
    parser.add_argument("-k", dest="only", default="", help="only variants with this in their id")
    parser.add_argument(
        "--only-tunings", action="append", help="only those with this in their id; repeatable"
    )
    parser.add_argument("--store", type=Path, help="where compiled kernels are kept, else nowhere")
    parser.add_argument("--capability", default="9.0", help="of the GPU that the stand-in is")
    parser.add_argument("--cases", type=lambda t: t.split(","), help="only these cases of codes")
    parser.add_argument("--there", type=Path, help="packages of the GPU's machine")
    parser.add_argument("--any-jax", action="store_true", help="whichever JAX is there")
    parser.add_argument("--no-wheels", action="store_true", help="the packages are there already")
    parser.add_argument(
        "--no-tunings", action="store_true", help="leave out those of JAX's kernels"
    )
    parser.add_argument("--python-version", help="of the GPU's machine, where it is another one")
    return parser.parse_args(arguments)


def pack(options: argparse.Namespace) -> int:
    """Make the folder; return its bytes."""
    from wheels import pack_wheels, read_there

    there = read_there(options.there) if options.there else {}
    if not options.any_jax:
        check_jax(there)
    folder: Path = options.folder
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="pallasc-pack-") as name:
        store = options.store or Path(name) / "store"
        pack_variants(folder, options, store)
    pack_codes(folder / "codes", options.capability, options.cases)
    pack_launches(folder / "launch")
    missing = []
    if not options.no_wheels:
        missing = pack_wheels(folder / "wheels", options.python_version, there)
        _say(f"wheels: pallasc {' '.join(missing)}")
    for script in (*sorted(HERE.glob("*.py")), HERE.parent / "launch_triton.py"):
        if script.name not in _NOT_CARRIED:
            shutil.copy(script, folder)
    shutil.rmtree(folder / "__pycache__", ignore_errors=True)
    return write_manifest(folder, versions=_versions(), targets=options.targets, wheels=missing)


def pack_variants(folder: Path, options: argparse.Namespace, store: Path) -> None:
    """Build the library and the tunings, and write them."""

    def chosen(variant: Any) -> bool:
        return bool(variant.target.name in options.targets and options.only in variant.id)

    library = compiled(sorted((ROOT / "specs" / "library").glob("*.yaml")), store, chosen)
    pack_kernels(folder / "kernels", library)
    pack_package(folder / "package", library)
    pack_exports(folder / "exports", library)
    tunings = [] if options.no_tunings else [ROOT / "examples" / "jax_tuning.yaml"]
    built = compiled(
        tunings, store, lambda variant: any(map(variant.id.count, options.only_tunings or [""]))
    )
    pack_kernels(folder / "tunings", built)
    pack_jobs(folder / "tune", built)


def main(arguments: Sequence[str]) -> int:
    """Make the folder; 1 where it is too large to be carried."""
    options = parse(arguments)
    if options.folder.exists():
        _say(f"pack: {options.folder} already exists: name a new folder, or remove it.")
        return 2
    total = pack(options)
    _say(f"{total / (1 << 20):.1f} MiB in {options.folder}")
    return 0 if total < MOST_BYTES else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
