"""What the user's code asks and changes in the compiling process: counted, undone or said."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pallasc.cache.store import Store
from pallasc.compiler.builds.collect import SpecReader
from pallasc.errors import SpecError

COMMON = """
import jax
import jax.numpy as jnp


def run(x):
    return jnp.sin(x).T, jnp.cumsum(x), x @ x
"""
SETTING = 'import jax\njax.config.update("jax_disable_most_optimizations", True)\n'
CHANGED = {
    "plain": "from common import run\n",
    "setting": SETTING + "from common import run\n",
    "late": f"from common import run as plain\n\n\ndef run(x):\n"
    f"    {SETTING.splitlines()[0]}\n    {SETTING.splitlines()[1]}\n    return plain(x)\n",
    "flags": 'import os\nos.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"\n'
    'os.environ.pop("LC_ALL", None)\nfrom common import run\n',
    "again": "from common import run\n",
}
ASKED = {
    "program": "import subprocess\ndef run(x):\n    subprocess.run(['true'])\n    return x * 3\n",
    "proc": "def run(x):\n    open('/proc/cpuinfo').close()\n    return x * 5\n",
    "bytes": "import os\ndef run(x):\n    try: os.environ[b'PATH']\n    except TypeError: pass\n"
    "    return x * 6\n",
    "asks": "import os\nDEBUG = os.path.exists(__file__ + '.debug')\n"
    "def run(x): return x * (9 + DEBUG)\n",
}
SAID = {
    "program": "program.py ran another program: pallasc cannot notice when that changes",
    "proc": "proc.py read /proc/cpuinfo: pallasc cannot notice when that changes",
}
WITHOUT_EFFECT = (
    "flags sets LC_ALL, XLA_FLAGS, which has no effect: set it where the build is started"
)


@pytest.fixture(scope="module")
def reports(make_project: Callable[[], Any]) -> list[Any]:
    """Return the reports of three builds, in one process each; a file came before the third."""
    project, kernels = make_project(), {**CHANGED, **ASKED}
    for name, text in {**kernels, "common": COMMON}.items():
        project.write(f"{name}.py", text)
    project.spec(
        *({"name": n, "entry": f"{n}.py:run", "args": {"x": "f32[128, 128]"}} for n in kernels)
    )
    found = [project.build() for _ in range(2)]
    project.write("asks.py.debug", "")
    return [*found, project.build()]


def test_a_setting_of_jax_that_acts_after_lowering_counts(reports: list[Any]) -> None:
    found = {result.variant.name: result for result in reports[0].results}
    keys = {name: result.action_key for name, result in found.items()}
    assert keys["plain"] == keys["again"] == keys["flags"]
    assert keys["setting"] == keys["late"] != keys["plain"]
    digests = {name: result.artifact.digest for name, result in found.items()}
    assert digests["setting"] == digests["late"] != digests["plain"]


def test_what_has_no_digest_or_no_effect_is_said_and_only_the_former_is_lowered_again(
    reports: list[Any],
) -> None:
    first = {r.variant.name: (r.status, r.error) for r in reports[0].results}
    assert {name: first[name] for name in ASKED} == dict.fromkeys(ASKED, ("compiled", None))
    again = {f"{name}@h100-sxm will be lowered again: {said}" for name, said in SAID.items()}
    assert {*reports[0].notes} == {WITHOUT_EFFECT, *again}
    for report in reports[1:]:
        assert again <= {*report.notes}
    assert {r.variant.name: (r.status, bool(r.reason)) for r in reports[1].results} == {
        name: ("lowered", True) if name in SAID else ("hit", False) for name in {**CHANGED, **ASKED}
    }


def test_a_file_that_somebody_asked_for_is_noticed_when_it_comes(reports: list[Any]) -> None:
    assert [(r.variant.name, r.reason) for r in reports[2].compiled] == [
        ("asks", "asks.py.debug has been created since")
    ]


def test_a_wrong_limit_is_said_before_anything_is_compiled(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write("late.py", "def run(x): return x\n")
    project.spec({"name": "late", "entry": "late.py:run"})
    monkeypatch.setenv("PALLASC_CACHE_SIZE", "bogus")
    with pytest.raises(SpecError, match="bogus"):
        project.build()
    assert project.events == []


DECLARING = """
import os
from pathlib import Path

import pallasc

try:
    import optional_sizes
except ImportError:
    optional_sizes = None
SIZE = int((Path(__file__).parent / "size.txt").read_text()) + int(os.environ.get("MORE", "0"))
SIZE += int(os.environ.get("EVEN_MORE", "0"))
SIZE += 1000 * (optional_sizes is not None)


@pallasc.kernel(args={"x": f"f32[{SIZE}, 128]"}, targets=["sm_90a"], env=["MORE"])
def scale(x):
    return x * 2
"""


@pytest.mark.parametrize(
    ("name", "value", "size"),
    [("size.txt", "16", 16), ("MORE", "8", 16), ("EVEN_MORE", "8", 8),
     ("optional_sizes.py", "", 1008)],
)  # fmt: skip
def test_what_a_python_spec_looks_at_is_an_input_of_what_it_declares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str, size: int
) -> None:
    (tmp_path / "size.txt").write_text("8")
    (tmp_path / "declared.py").write_text(DECLARING)

    def declared() -> tuple[str, list[str]]:
        store = Store(tmp_path / "store")
        (spec,) = SpecReader(store=store).specs([str(tmp_path / "declared.py")])
        return str(spec.args["x"]), store.warnings  # type: ignore[call-overload]

    assert declared() == ("f32[8, 128]", [])
    if name.isupper():
        monkeypatch.setenv(name, value)
    else:
        (tmp_path / name).write_text(value)
    for _ in range(2):  # executed, and remembered
        array, notes = declared()
        assert array == f"f32[{size}, 128]"
        assert len(notes) == (name == "EVEN_MORE")
        said = "declared.py asks for EVEN_MORE (declared.py:12), which exists here"
        assert all(note.startswith(said) for note in notes)
