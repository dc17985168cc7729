"""What a process that only launches has in it: no JAX, no numpy, no framework, no tool of ours."""

import json
from pathlib import Path
from typing import Any

import made
import pytest

UNWANTED = frozenset(
    {
        *("jax", "jaxlib", "numpy", "ml_dtypes", "torch", "cupy", "click", "yaml", "google"),
        *("sqlite3", "_sqlite3", "sqlite_utils", "llvmlite", "cramjam"),
    }
)

_LOADED = """
import json
import sys
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""

# Whatever is unwanted cannot be found here, as on a machine that does not have it.
_WITHOUT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {sorted(UNWANTED)!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""

_OPEN = """
import json
import sys
from pathlib import Path

import pallasc

folder = Path(sys.argv[1])
record = json.loads((folder / "record.json").read_text())
kernel = pallasc.open_artifact(pallasc.Artifact(record, lambda key: (folder / key).read_bytes()))
"""
_DEVICE = """
from pallasc.runtime.adapters.device_arrays import DeviceArray

a, b, out = (DeviceArray((4, 64), "f32") for _ in range(3))
for _ in range(2):
    assert kernel.into(a, b, out=out) is out
kernel(a, b)
try:
    kernel(a, None)
except pallasc.ArgumentError:
    pass
"""
_NUMPY = """
import numpy

a = numpy.ones((4, 64), numpy.float32)
for _ in range(2):
    assert kernel(a, a).shape == (4, 64)
"""


def _modules(done: Any) -> set[str]:
    """Return the modules that a process had in the end."""
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def test_an_import_loads_nothing_large(fresh_process: Any) -> None:
    loaded = _modules(fresh_process(f"import pallasc.runtime.opening\n{_LOADED}"))
    assert "pallasc" in loaded
    # A file of cuda-bindings 12 imports it in every process.
    bare = _modules(fresh_process(_LOADED))
    assert (loaded - bare) & (UNWANTED | {"cuda"}) == set()


@pytest.mark.parametrize(
    ("wanted", "arrays", "loads"),
    [("", _DEVICE, set()), (_WITHOUT, _DEVICE, set()), ("", _NUMPY, {"numpy"})],
    ids=["installed", "missing", "numpy"],
)
def test_launches_need_nothing_but_the_binding(
    wanted: str, arrays: str, loads: set[str], tmp_path: Path, fresh_process: Any
) -> None:
    artifact = made.add()
    (tmp_path / "record.json").write_text(json.dumps(artifact.record))
    for key, data in artifact.blobs().items():
        (tmp_path / key).write_bytes(data)
    loaded = _modules(fresh_process(wanted + _OPEN + arrays + _LOADED, str(tmp_path)))
    assert "cuda" in loaded
    assert loaded & UNWANTED == loads
