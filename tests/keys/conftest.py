"""A small world with all inputs of keys: specs, sources, installed packages, a toolchain.

All files are real, but those of the toolchain are short, so that a case takes milliseconds. Each
case copies the world to a new folder, changes one thing, and calls the real functions.
"""

import importlib
import json
import os
import shutil
import site
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from commands import output_of

import pallasc.errors
from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.inputs.lookup import Lookup, place_of
from pallasc.compiler.inputs.sources import CurrentSources
from pallasc.compiler.lowering.compile import Tools, action_fields
from pallasc.compiler.lowering.lower import Job, Lowered
from pallasc.compiler.toolchain import identity as identities
from pallasc.compiler.toolchain import modules
from pallasc.compiler.toolchain.identity import toolchain_identity
from pallasc.compiler.toolchain.setup import Context, compiling_environment, key_variables
from pallasc.compiler.toolchain.toolchain import Package, Toolchain
from pallasc.specs import gpus
from pallasc.specs.artifacts.plan import Binding, LaunchPlan
from pallasc.specs.canonical import labelled_key
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_specs
from pallasc.specs.spec import Variant

PROGRAMS = Path(__file__).parent / "programs"
CASE = "import os\nfrom pathlib import Path\nHERE = Path(__file__).parent\n\n\ndef run(x):\n"
DIGESTS = FileDigests()
"""Shared by all cases, so that unchanged files are read once; changed files have other times."""

KERNEL = '''
"""A kernel that is reached by every way that there is."""
import colorsys
import importlib
import importlib.util
import os
from pathlib import Path

import grouped.inner
import helper
import thirdparty

try:
    import optional_fast
except ImportError:
    optional_fast = None
try:
    from grouped import faster
except ImportError:
    faster = None
SPED_UP = importlib.util.find_spec("speedup") is not None
HERE = Path(__file__).parent
TILE = int(os.environ.get("KERNEL_TILE", "64"))


def run(x, y, *, config, count, factor, label, flag, turn, nested):
    import lazy

    dynamic = importlib.import_module("dynamic")
    table = (HERE / "table.txt").read_text()
    tuning = (HERE / "tuning.json").read_text()
    try:
        override = (HERE / "override.json").read_text()
    except FileNotFoundError:
        override = ""
    parts = [part.read_text() for part in sorted((HERE / "parts").glob("*.part"))]
    scale = len(table) + len(tuning) + len(override) + len(parts) + TILE
    return helper.scale(lazy.twice(dynamic.thrice(turn(x)))) + y * scale


def other(x, y, *, config, count, factor, label, flag, turn, nested):
    return x
'''
SOURCES = {
    "kernel.py": KERNEL,
    "helper.py": "import second\n\n\ndef scale(x):\n    return second.plus(x) * 3\n",
    "second.py": "def plus(x):\n    return x + 1\n",
    "lazy.py": "def twice(x):\n    return x * 2\n",
    "dynamic.py": "def thrice(x):\n    return x * 3\n",
    "grouped/__init__.py": "",
    "grouped/inner.py": "from grouped.deeper.leaf import ONE\n",
    "grouped/deeper/__init__.py": "",
    "grouped/deeper/leaf.py": "ONE = 1\n",
    "grouped/unused.py": "TWO = 2\n",
    "made.py": "import made_of\n\n\nclass Config:\n    def __init__(self, tile, depth):\n"
    "        self.tile = made_of.checked(tile)\n\n\nclass Wider(Config):\n    pass\n",
    "made_of.py": "def checked(tile):\n    return tile\n",
    "turns.py": "def same(x):\n    return x\n\n\ndef negated(x):\n    return -x\n",
    "table.txt": "1 2 3\n",
    "tuning.json": "{}\n",
    "parts/one.part": "1\n",
    "unrelated.py": "def run(x):\n    return x\n",
    "notes.txt": "nothing\n",
}
SITE = {
    "thirdparty/__init__.py": "from thirdparty.core import ONE\n",
    "thirdparty/core.py": "ONE = 1\n",
    "thirdparty/kernels.py": KERNEL,
    "thirdparty/_native.so": "native code\n",
    "thirdparty.libs/libinner-1.so": "a library that the wheel brings\n",
    "thirdparty-1.0.dist-info/METADATA": "Name: thirdparty\nVersion: 1.0\n",
    "bystander/__init__.py": "",
    "google/protobuf/__init__.py": "",
    **{
        f"{name}/__init__.py": f"# {name}\n"
        for name in ("cramjam", "llvmlite", "ml_dtypes", "numpy", "opt_einsum", "scipy")
    },
    "numpy/core.so": "native code\n",
    "numpy/tests/test_core.py": "",
    "numpy.libs/libopenblas.so": "native code\n",
}
TOOLCHAIN = {
    "jax/__init__.py": '__version__ = "0.12.0"\n',
    "jax/_src/lax.py": "ADD = 1\n",
    "jax/experimental/pallas/lowering.py": "RULES = {}\n",
    "jaxlib/__init__.py": "",
    "jaxlib/libjax_common.so": "native code\n",
    "jaxlib/mosaic/dialect.py": "",
    "jaxlib/include/header.h": "",
    "jax_cuda13_plugin/cuda_plugin_extension.so": "native code\n",
    "jax_plugins/xla_cuda13/__init__.py": "",
    "jax_plugins/xla_cuda13/xla_cuda_plugin.so": "native code\n",
    "bin/ptxas": "assembler\n",
    "bin/other-ptxas": "another assembler\n",
    "bin/nvlink": "linker\n",
    "nvvm/libdevice/libdevice.10.bc": "bitcode\n",
}
SPEC: dict[str, Any] = {
    "schema": 1,
    "models": {"mine": {"like": "h100-sxm", "description": "A GPU"}},
    "targets": ["mine"],
    "kernels": [
        {
            "name": "first",
            "entry": "kernel.py:run",
            "args": {"x": "f32[8, 128]", "y": "f32[8, 128]"},
            "static": {
                "config": {"$call": "made.py:Config", "tile": 64, "depth": 2},
                "count": 1,
                "factor": 2.5,
                "label": "a",
                "flag": True,
                "turn": {"$ref": "turns.py:same"},
                "nested": {"sizes": [1, 2], "b": 1, "a": 2},
            },
            "files": ["table.txt"],
            "env": ["KERNEL_TILE"],
            "reference": "kernel.py:other",
            "tolerance": {"rtol": 0.01},
            "budget": {"registers": 128},
        },
        {"name": "second", "entry": "unrelated.py:run", "args": ["f32[8, 128]"]},
    ],
}


@dataclass(frozen=True)
class Answers:
    """Answers on the first kernel: both keys, and the reasons why its manifest does not match."""

    request: str
    action: str
    changed: tuple[str, ...]


class World:
    """Folders of specs, installed packages and a toolchain; `patch` is undone after the case."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self.patch = root, patch
        self.project, self.site, self.tools = root / "specs", root / "site", root / "tools"
        self.spec: dict[str, Any] = json.loads(json.dumps(SPEC))
        self.kernel = self.spec["kernels"][0]
        self.static: dict[str, Any] = self.kernel["static"]
        self.target: dict[str, Any] = self.spec["models"]["mine"]
        self.ptxas = "ptxas"
        self.module = "module {}"
        self.inputs = (Binding("x", "f32", (8, 128), 0), Binding("y", "f32", (8, 128), 1))
        self.name, self.text = "spec.yaml", ""

    def add(self, name: str, text: str = "") -> None:
        """Write a file, or replace it."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def add_kernel(self, entry: str, lines: tuple[str, ...]) -> dict[str, Any]:
        """Write a kernel with these lines in its body, and return its declaration in a spec."""
        body = "".join(f"    {line}\n" for line in lines)
        self.add(f"specs/{entry}.py", f"{CASE}{body}    return x\n")
        return {"name": entry, "entry": f"{entry}.py:run", "args": {"x": "f32[8, 128]"}}

    def flip(self, name: str) -> None:
        """Change one bit of a file, keeping its size and modification time."""
        path = self.root / name
        times = path.stat()
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))

    def flip_own(self, module: str) -> None:
        """Change one bit of a module in a copy of pallasc, and take pallasc's identity from it."""
        here = Path(identities.__file__).resolve().parents[2]
        for name in ("compiler", "specs", "cli"):
            shutil.copytree(here / name, self.root / "own" / name)
        shutil.copy(pallasc.errors.__file__, self.root / "own")  # where a wheel has it
        self.flip(f"own/{module}")
        self.patch.setattr(identities, "_top", lambda: self.root / "own")

    def set_row(self, capability: tuple[int, int], values: dict[str, Any]) -> None:
        """Change values in pallasc's row of an architecture, or add one like that of sm_90a."""
        table = dict(gpus.ARCHITECTURES)
        table[capability] = table.get(capability, table[9, 0])._replace(**values)
        self.patch.setattr(gpus, "ARCHITECTURES", table)

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace a text that must be in a file."""
        text = (self.root / name).read_text(encoding="utf-8")
        assert old in text
        self.add(name, text.replace(old, new))

    def setenv(self, name: str, value: object) -> None:
        """Set an environment variable of this process."""
        self.patch.setenv(name, str(value))

    def variant(self) -> Variant:
        """Return the first kernel's variant."""
        path = self.project / self.name
        path.write_text(self.text or json.dumps(self.spec), encoding="utf-8")  # JSON is YAML
        return next(v for v in expand(load_specs([path])) if v.entry != "unrelated.py:run")

    def toolchain(self) -> Toolchain:
        """Return the toolchain of this world."""
        names = ("jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda13-pjrt")
        return Toolchain(
            cuda=13,
            packages=tuple(Package(name, "0.12.0", self.tools) for name in names),
            ptxas=self.tools / "bin" / self.ptxas,
            nvlink=self.tools / "bin" / "nvlink",
            libdevice=self.tools / "nvvm/libdevice/libdevice.10.bc",
            plugin=self.tools / "jax_plugins/xla_cuda13/xla_cuda_plugin.so",
        )

    def ask(self, manifest: dict[str, Any] | None) -> Answers:
        """Return both keys, and the parts of a manifest that no longer match."""
        importlib.invalidate_caches()
        environment = compiling_environment(os.environ, self.tools / "bin")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(self.site)
            patch.setattr(site, "USER_SITE", str(self.site))
            modules.site_folders.cache_clear()
            variant, digests = self.variant(), DIGESTS
            identity = toolchain_identity(self.toolchain(), digests.digest)
            context = Context(identity, key_variables(environment), digests)
            known = {*Manifest.__struct_fields__}
            held = {name: value for name, value in (manifest or {}).items() if name in known}
            changes = CurrentSources(place_of(variant), digests).changes(Manifest(**held))
            answers = Answers(
                Lookup(context, Store(self.root / "store")).key(variant),
                labelled_key(self.action_fields(variant, context)),
                tuple(change.sentence for change in changes),
            )
        modules.site_folders.cache_clear()
        return answers

    def action_fields(self, variant: Variant, context: Context) -> dict[str, str]:
        """Return the fields of the action key, as if the kernel had been lowered to `module`."""
        signature = LaunchPlan((), self.inputs, (), (), {"x": 0, "y": 1}, None)
        job = Job(cast("Callable[..., Any]", None), variant.args, {}, variant.target)
        ptxas, variables = self.tools / "bin/ptxas", context.variables
        tools = Tools({}, ptxas, context.for_actions(), variables, self.tools)
        return action_fields(job, Lowered(None, self.module, signature), tools)


@dataclass(frozen=True)
class Baseline:
    """The unchanged world: its folder, its answers, and its first manifest."""

    root: Path
    manifest: dict[str, Any]
    answers: Answers

    @staticmethod
    def world(root: Path, patch: pytest.MonkeyPatch) -> World:
        """Return the world in a folder."""
        return World(root, patch)


def write_world(root: Path) -> None:
    for top, files in (("specs", SOURCES), ("site", SITE), ("tools", TOOLCHAIN)):
        for name, text in files.items():
            path = root / top / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")


def run_trace(world: World, *kernels: dict[str, Any], **variables: str) -> dict[str, Any]:
    """Return the manifests of kernels by name, recorded in a process like a worker.

    Variables reach the kernels that declare them.
    """
    environment = compiling_environment({**os.environ, **variables}, world.tools / "bin")
    spec = world.project / "traced.yaml"
    spec.write_text(json.dumps({**world.spec, "kernels": kernels}), encoding="utf-8")
    command = [sys.executable, "-P", PROGRAMS / "trace.py", spec, world.site, json.dumps(variables)]
    manifests: dict[str, Any] = json.loads(output_of(command, env=environment))
    spec.unlink()
    return manifests


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Baseline:
    """Return the unchanged world, traced once."""
    root = tmp_path_factory.mktemp("world") / "base"
    write_world(root)
    with pytest.MonkeyPatch.context() as patch:
        world = World(root, patch)
        manifest = run_trace(world, world.kernel)["first"]
        return Baseline(root, manifest, world.ask(manifest))


@pytest.fixture
def world(baseline: Baseline, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Yield a copy of the unchanged world in a new folder."""
    shutil.copytree(baseline.root, tmp_path / "copy")
    yield World(tmp_path / "copy", monkeypatch)
    modules.site_folders.cache_clear()


@pytest.fixture(scope="session")
def trace() -> Callable[..., dict[str, Any]]:
    """Return the function that traces kernels of a world in a process like a worker."""
    return run_trace
