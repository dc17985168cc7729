"""A spec with hostile names, and what was made of it."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from processes import captured

from pallasc.cache.store import Store

HOSTILE = "</script><img src=x onerror=alert(1)>"

SPEC = f"""\
schema: 1
targets: [sm_90a]
kernels:
  - name: matmul
    entry: pallasc.specs.library.hopper_matmul:matmul
    args: {{a: "bf16[1024, 4096]", b: "bf16[4096, 4096]"}}
    static: {{tile_m: 128, tile_n: "{{tile_n}}", tile_k: 64, max_concurrent_steps: 4}}
    matrix: {{tile_n: [64, 128]}}
  - name: add
    entry: kernels.py:add
    args: {{x: "f32[8, 4096]", y: "f32[8, 4096]"}}
    static: {{block_size: "{{block}}", label: "{{label}}"}}
    matrix: {{block: [1024, 2048], label: [plain, "{HOSTILE}"]}}
  - name: refused
    entry: kernels.py:refused
    args: {{x: "f32[1024, 4096]"}}
"""

KERNELS = f"""\
from pallasc.specs.library import elementwise

def add(x, y, *, block_size, label):
    # {HOSTILE}
    return elementwise.add(x, y, block_size=block_size)

def refused(x):
    raise ValueError("{HOSTILE}")
"""


@dataclass(frozen=True, slots=True)
class Built:
    """A spec, the store it was built into, the report of both, and its file."""

    spec: Path
    store: Store
    file: Path

    @property
    def page(self) -> str:
        """The report."""
        return self.file.read_text()


def pallasc(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of pallasc in a folder."""
    return captured([sys.executable, "-P", "-m", "pallasc", *words], cwd=folder)
