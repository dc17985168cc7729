"""`pallasc run --emulate` on real kernels: numbers, faults with the user's line, limits."""

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

MORE = """

def beside(x):
    return sound(x * 2) / 2


def far_away(x):
    def body(x, o, bar, smem):
        place = (jax.lax.axis_index("i") + 1) * (1 << 28)
        o[pl.ds(place, 128)] = x[...]  # outside of all memory

    return kernel(body)(x)


def says(x):
    def body(x, o, bar, smem):
        pl.debug_print("element {}", 7)
        o[...] = x[...]

    return kernel(body)(x)


def softmax_reference(x):
    return jax.nn.softmax(x, axis=1)
"""
NAMES = ("sound", "waits_twice", "beside", "says", "lasting", "far_away")


class Project:
    """A folder with a spec, and its store."""

    def __init__(self, checked: Any, pallasc: Any) -> None:
        self.folder, self.line, self._pallasc = checked.folder, checked.line, pallasc

    def pallasc(self, *words: str | Path) -> Any:
        return self._pallasc(self.folder, *words)

    def emulate(self, name: str, *words: str | Path, spec: str = "spec.yaml") -> Any:
        """Emulate a kernel of the spec."""
        return self.pallasc("run", spec, "--emulate", "-k", f"name={name}", *words)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Project:
    folder = tmp_path_factory.mktemp("emulation")
    (folder / "kernels.py").write_text(checking.KERNELS + checking.LASTING + MORE)
    kernels: list[dict[str, object]] = [{"name": name} for name in NAMES]
    kernels += [
        {
            "name": "softmax",
            "entry": "pallasc.specs.library.rows:softmax",
            "reference": "kernels.py:softmax_reference",
            "args": {"x": "f32[{m}, 512]"},
            "matrix": {"m": [8]},
            "targets": ["sm_90a", "sm_100a"],
        }
    ]
    (folder / "spec.yaml").write_text(checking.spec_of(*kernels))
    built = checking.pallasc(folder, "build", "spec.yaml", "--jobs", "1")
    assert built.code == 0, built.err
    return Project(checking.Checked(folder, built), checking.pallasc)


def test_the_report_has_no_device(project: Project, tmp_path: Path) -> None:
    x = np.random.default_rng(1).uniform(-2, 2, (8, 512)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    words = ("--json", "-k", "softmax and m=8", "--input", f"x={tmp_path / 'x.npy'}")
    ran = project.emulate("softmax", *words, "--output", tmp_path / "out")
    assert ran.code == 0, ran.err
    report = json.loads(ran.out)
    assert (report["schema"], report["device"], report["emulated"]) == (1, None, True)
    (result,) = report["results"]
    # Of two targets the first is emulated.
    assert (result["id"], result["same"]) == ("softmax[m=8]@h100-sxm", True)
    assert result["inputs"][0]["file"] == str(tmp_path / "x.npy")
    found = np.load(tmp_path / "out" / "out.npy")
    assert result["outputs"][0]["sha256"] == hashlib.sha256(found.tobytes()).hexdigest()
    powers = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(found, powers / powers.sum(1, keepdims=True), rtol=1e-5)


def test_a_deadlock_ends_with_the_users_line(project: Project) -> None:
    ran = project.emulate("waits_twice")
    assert (ran.code, ran.out) == (1, "")
    place = f"{project.folder / 'kernels.py'}:{project.line('nobody arrives again')}"
    head, who, hint = ran.err.splitlines()
    assert head.startswith(f"error: {place}")
    assert "waits_twice@h100-sxm: no warp can make progress: " in head
    assert "0 of 128 arrivals" in head
    assert re.search(r"\(at mbarrier\.try_wait.*, PTX line \d+\) \[deadlock\]$", head)
    assert who.startswith(f"  {place}")
    assert "and 3 more wait for parity" in who
    assert hint.startswith("  On a GPU the kernel hangs.")


def test_what_a_kernel_prints_goes_to_the_error_output(project: Project) -> None:
    ran = project.emulate("says", "--json")
    assert json.loads(ran.out)["results"][0]["same"] is True
    assert "element 7" in ran.err


def test_a_limit_stops_the_worker(project: Project) -> None:
    ran = project.emulate("lasting", "--timeout", "2")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == (
        "error: the process that emulates lasting@h100-sxm took longer than 2 s (--timeout) and "
        "was stopped\n  If it needs more time, raise --timeout.\n"
    )


def test_an_emulation_takes_no_device(project: Project) -> None:
    ran = project.emulate("sound", "--device", "1")
    assert (ran.code, ran.out) == (2, "")
    words = "error: --device cannot be used with --emulate: no GPU is used.\n"
    assert ran.err.startswith(words)


def test_a_bundle_is_emulated_where_it_has_the_ptx(project: Project) -> None:
    create = ["bundle", "create", "spec.yaml", "-k", "name=sound or name=beside"]
    for options in ([], ["--keep-ptx"]):
        name = f"kernels{len(options)}.pallasc"
        made = project.pallasc(*create, "-o", name, *options)
        assert made.code == 0, made.err
    ran = project.emulate("sound", spec="kernels1.pallasc")
    assert (ran.code, ran.err) == (0, "")
    assert "not compared (no reference)" in ran.out
    for words in (["run", "--emulate"], ["run"], ["bench"]):
        ran = project.pallasc(words[0], "0123456789ab", *words[1:])
        assert (ran.code, ran.out) == (2, "")
        assert "0123456789ab: there is no such file" in ran.err
    ran = project.emulate("sound", spec="kernels0.pallasc")
    assert ran.code == 1
    assert re.search(r"no PTX of the kernel \w+: pallasc bundle create --keep-ptx", ran.err)
    ran = project.emulate("beside", spec="kernels1.pallasc")
    assert ran.code == 1
    assert "it is an XLA kernel" in ran.err
