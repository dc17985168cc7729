"""What one variant changes in its process does not reach the next."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

HELPER = """
import functools, itertools
DEFAULTS, ITEMS, SEEN, NESTED = {"scale": 2}, [2], set(), {"inner": {"scale": 2}}
SCALE = 2
class Holder:
    scale = 2
HELD = Holder()
def chosen(scale=2): return scale
COUNT = itertools.count(2)
@functools.cache
def first(): return next(COUNT)
def counter():
    calls = 1
    def call():
        nonlocal calls
        calls += 1
        return calls
    return call
COUNTED = counter()
REGISTRY = {}
def register(function): REGISTRY[function.__name__] = function
"""

FILES = {
    "helper.py": HELPER, "other.py": "", "package/__init__.py": "", "package/part.py": "",
    "hidden.py": "SCALE = 2\n", "elsewhere/hidden.py": "SCALE = 9\n",
}  # fmt: skip
HEADER = "import os, sys\nimport jax\nimport jax.numpy as jnp\nimport numpy as np\nimport helper\n"

STUB = "import types; stub = types.ModuleType('hidden'); stub.SCALE = 9"

LEAKS = {
    # In JAX and what it needs.
    "patched_function": ["plain = jnp.arange\njnp.arange = lambda n: plain(n) + 1", "",
                         "jnp.arange.__name__"],
    "renamed_attribute": ["jax.nn.mine = vars(jax.nn).popitem()[1]", "", "hasattr(jax.nn, 'mine')"],
    "removed_attribute": ["del jnp.arccosh", "", "hasattr(jnp, 'arccosh')"],
    "class_of_jax": ["jax.ShapeDtypeStruct.mine = 9", "",
                     "getattr(jax.ShapeDtypeStruct, 'mine', 2)"],
    "keywords_of_jax": ["jnp.zeros_like.__kwdefaults__['device'] = 9", "",
                        "jnp.zeros_like.__kwdefaults__['device']"],
    "method_defaults_of_jax": ["", "plgpu = __import__('jax.experimental.pallas.mosaic_gpu', "
                               "fromlist=['x'])\nplgpu.CompilerParams.__init__.__kwdefaults__"
                               ".update(approx_math=True)",
                               "__import__('jax.experimental.pallas.mosaic_gpu', fromlist=['x'])"
                               ".CompilerParams().approx_math"],
    "helper_of_pallasc": ["from pallasc.specs.library import elementwise\n"
                          "elementwise.add.__kwdefaults__['block_size'] = 512", "",
                          "__import__('pallasc.specs.library.elementwise', fromlist=['x'])"
                          ".add.__kwdefaults__['block_size']"],
    "buffers_of_numpy": ["np.setbufsize(16 * 1024)", "", "np.getbufsize()"],
    "setting_of_jax": ["jax.config.update('jax_enable_x64', True)", "",
                       "jax.config.jax_enable_x64"],
    "module_of_jax": ["from jax.experimental.pallas.ops.gpu import softmax\n"
                      "softmax.__dict__['_mine'] = 9", "",
                      "hasattr(__import__('jax.experimental.pallas.ops.gpu.softmax', "
                      "fromlist=['x']), '_mine')"],
    "dialect": ["from jaxlib.mlir.dialects import arith\narith.mulf = arith.addf", "",
                "sys.modules['jaxlib.mlir.dialects.arith'].mulf.__name__"],
    # In Python and numpy.
    "function_of_python": ["import math\nmath.sqrt = lambda x: 9", "",
                           "__import__('math').sqrt(4)"],
    "builtin": ["import builtins\nbuiltins.mine = 9", "",
                "getattr(__import__('builtins'), 'mine', 2)"],
    "environment": ["os.environ['MINE'] = '9'", "", "os.environ.get('MINE')"],
    "folder": ["", "os.chdir('/')", "os.path.basename(os.getcwd())"],
    "printing_of_numpy": ["np.set_printoptions(precision=1)", "", "str(np.array([1 / 3]))"],
    "random_of_numpy": ["np.random.seed(0)", "", "int(np.random.get_state()[1][0]) == 0"],
    "random": ["import random\nrandom.seed(0)", "",
               "round(__import__('random').random(), 6) == 0.844422"],
    "warnings": ["import warnings\nwarnings.simplefilter('error')", "",
                 "[each[0] for each in __import__('warnings').filters]"],
    "decimal": ["import decimal\ndecimal.getcontext().prec = 3", "",
                "str(__import__('decimal').Decimal(1) / 3)"],
    "logging": ["import logging\nlogging.disable(50)\nlogging.root.setLevel(10)", "",
                "__import__('logging').root.level"],
    "signals": ["import signal\nsignal.signal(signal.SIGALRM, lambda *a: None)", "",
                "callable(__import__('signal').getsignal(14))"],
    "threads": ["import threading\nthreading.Thread(target=threading.Event().wait, "
                "daemon=True).start()", "", "__import__('threading').active_count()"],
    "tracing": ["", "sys.setprofile(lambda *a: None)", "sys.getprofile() is None"],
    "umask": ["os.umask(0o777)", "", "os.umask(0)"],
    # In an installed package that nothing else imports.
    "installed": ["import pluggy\npluggy._kept = {}", "", "hasattr(__import__('pluggy'), '_kept')"],
    # In the import system.
    "path": ["sys.path.insert(0, os.path.join(os.path.dirname(__file__), 'elsewhere'))", "",
             "__import__('hidden').SCALE"],
    "stub": [f"{STUB}\nsys.modules['hidden'] = stub", "", "__import__('hidden').SCALE"],
    "stub_of_jax": [f"{STUB}\nsys.modules['jax.missing'] = stub", "",
                    "hasattr(sys.modules.get('jax.missing'), 'SCALE')"],
    "loaded": ["import other", "", "'other' in sys.modules"],
    "finder": ["class Finder:\n    def find_spec(self, *a): return None\n"
               "sys.meta_path.insert(0, Finder())", "", "len(sys.meta_path)"],
    # In modules that both import.
    "value": ["helper.SCALE = 9", "", "helper.SCALE"],
    "dict": ["helper.DEFAULTS['scale'] = 9", "", "helper.DEFAULTS"],
    "set": ["", "helper.SEEN.add(9)", "helper.SEEN"],
    "class": ["helper.Holder.scale = 9", "", "helper.Holder().scale"],
    "object": ["helper.HELD.scale = 9", "", "helper.HELD.scale"],
    "cache": ["next(helper.COUNT); helper.first()", "", "helper.first()"],
    "closure": ["", "helper.COUNTED()", "helper.COUNTED()"],
    "registry": ["@helper.register\ndef mine(): pass", "", "[*helper.REGISTRY]"],
}  # fmt: skip


def test_nothing_leaks_from_one_variant_into_the_next(
    tmp_path: Path, run_program: Callable[..., Any]
) -> None:
    for name, text in {**FILES, "cases.json": json.dumps(LEAKS), "own/empty": ""}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    seen = run_program("leaks.py", tmp_path)
    assert [*seen] == [*LEAKS]
    without_leak = [name for name, (alone, after, _) in seen.items() if alone == after]
    assert without_leak == []
    assert {n: each for n, each in seen.items() if each[2] not in (None, each[0])} == {}


BUILT = ("keywords_of_jax", "dialect", "environment", "path", "stub", "dict", "closure")
KERNEL = f"""
{HEADER}
import zlib

def run(x):
    from jax.experimental.pallas import mosaic_gpu as plgpu

    seen = [{", ".join(LEAKS[name][2] for name in BUILT)}]
    scale = zlib.crc32(repr(seen).encode())

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * float(scale)

    return plgpu.kernel(body, out_type=x)(x)
"""


def test_artifact_and_manifest_are_the_same_in_any_order(
    make_project: Callable[[], Any], results: Any
) -> None:
    def built(names: list[str], jobs: int) -> dict[str, Any]:
        project = make_project()
        for name, text in {**FILES, "kernel.py": KERNEL}.items():
            project.write(name, text)
        for name in BUILT:
            imported, traced, _ = LEAKS[name]
            body = "\n    ".join([*traced.splitlines(), "import kernel", "return kernel.run(x)"])
            project.write(f"{name}.py", f"{HEADER}{imported}\ndef run(x):\n    {body}\n")
        project.spec(
            *({"name": n, "entry": f"{n}.py:run", "args": {"x": "f32[128]"}} for n in names)
        )
        found = results(project.build(jobs=jobs))
        assert {name: str(result.error) for name, result in found.items() if result.error} == {}
        manifests: Mapping[str, Any] = project.manifests(project.variants())
        return {
            name: (
                result.artifact.digest,
                # A kernel that imports a module without a file has none.
                {**manifests[name].to_json(), "about": None} if name in manifests else None,
            )
            for name, result in found.items()
        }

    first = built([*BUILT, "kernel"], 1)
    kernel = first["kernel"][0]
    assert [name for name in BUILT if first[name][0] == kernel] == []  # each sees its own change
    assert built(["kernel", *BUILT[::-1]], 2) == first


def test_a_module_that_cannot_be_executed_twice_gets_a_new_process(project: Any) -> None:
    project.write(
        "flag.py",
        "from absl import flags\nflags.DEFINE_string('mine', '', '')\ndef run(x): return x + 1\n",
    )
    project.spec(
        *({"name": name, "entry": "flag.py:run"} for name in ("first", "second")),
        *[{"name": "third", "entry": "flag.py:run", "args": {"x": "f32[16, 128]"}}],
    )
    assert [result.error for result in project.build().results] == [None, None, None]


def test_variants_that_change_nothing_share_a_process(project: Any) -> None:
    project.write(
        "kernels.py",
        "import os\nimport pallasc\n"
        "@pallasc.kernel(args={'x': 'f32[8]'}, targets=['sm_90a'])\n"
        "def run(x):\n    print(os.getpid())\n    return x + 1\n",
    )
    project.spec(
        *({"name": f"run{n}", "entry": "kernels.py:run", "args": {"x": f"f32[{n}]"}}
          for n in (8, 16, 32))
    )  # fmt: skip
    printed = {result.printed for result in project.build().results}
    assert len(printed) == 1
    assert printed != {""}
