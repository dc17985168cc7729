"""Changed flat plans, odd calls of XLA and of Python are taken or refused, under sanitizers.

`bench/fuzz_flat_plan.py` tries millions of them.
"""

from pathlib import Path

import native_fuzz
import pytest
from native_plans import PLANS

INPUTS, SITES, KERNELS, SEED = 1_500, 300, 60, 16


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Give plans with everything that there is, and their cubins."""
    if (missing := native_fuzz.why_not()) is not None:
        pytest.skip(f"{missing}, so the reader cannot be fuzzed")
    artifacts = ((name, make()) for name, make in PLANS.items())
    return native_fuzz.write_files(artifacts, tmp_path_factory.mktemp("plans"))


def test_changed_plans_are_opened_or_refused_and_launch_within_their_arrays(
    files: list[Path], tmp_path: Path
) -> None:
    found = native_fuzz.run(files, INPUTS, seed=SEED, findings=tmp_path)
    opened, prepared, launched = (found[name] for name in ("opened", "prepared", "launched"))
    names = native_fuzz.STATUS
    assert found["inputs"] == INPUTS
    assert (
        sum(opened)
        == INPUTS + found["sound"]
        == opened[0] + opened[names.index("corrupt")] + (opened[names.index("not found")])
    )
    # Mutations reach what lies behind the first checks, and launches with maps.
    assert opened[0] > INPUTS / 10
    assert opened[names.index("not found")] > 0
    assert prepared[0] > INPUTS / 10
    assert launched[0] > INPUTS / 10
    assert sum(launched[1:]) == 0
    assert found["maps"] > INPUTS / 10


def test_odd_calls_of_xla_are_refused_and_sound_ones_launch_within_their_arrays(
    files: list[Path],
) -> None:
    found = native_fuzz.run_handlers(files, SITES, seed=SEED)
    assert found["sites"] == SITES == found["instantiated"] + found["refused"]
    # Both happen often, so that what lies behind is reached.
    assert found["instantiated"] > SITES / 5
    assert found["refused"] > SITES / 5
    assert found["executed"] > SITES / 5
    assert found["not_executed"] > SITES / 5
    assert found["described"] > 0


def test_odd_calls_of_the_extension_are_left_to_python_or_launch_what_was_passed() -> None:
    if (missing := native_fuzz.why_not_extension()) is not None:
        pytest.skip(f"{missing}, so the extension cannot be fuzzed")
    found = native_fuzz.run_extension(KERNELS, seed=SEED)
    assert found["cases"] == KERNELS
    assert found["launched"] > KERNELS
    assert found["left to Python"] > KERNELS
    assert found["exceptions"] > 0
