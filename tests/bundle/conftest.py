"""Fixtures of the tests of bundles: the module with made-up artifacts, and a small bundle."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import output_of

PROGRAMS = Path(__file__).parent / "programs"
sys.path.insert(0, str(PROGRAMS))

from made_bundles import make_items  # noqa: E402

from pallasc.specs.bundle.bundle import Bundle, open_bundle  # noqa: E402
from pallasc.specs.bundle.writer import build_bundle  # noqa: E402


@pytest.fixture(scope="session")
def small() -> bytes:
    """Return a bundle of two kernels with three points each on two targets."""
    return build_bundle(make_items(3, names=("norm", "scale"), targets=("h100-sxm", "b200")))


@pytest.fixture
def rebuilt(small: bytes) -> Callable[..., Bundle]:
    """Return a function that opens the small bundle after its parts were changed."""
    from taken_apart import Parts

    def change(edit: Callable[[Parts], None]) -> Bundle:
        parts = Parts.of(small)
        edit(parts)
        return open_bundle(parts.data())

    return change


@pytest.fixture
def git(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Return a function that runs git in a folder, without the user's configuration."""
    home = tmp_path_factory.mktemp("home")
    (home / ".gitconfig").write_text("[user]\n name = n\n email = n@example.org\n")

    def run(folder: Path, *arguments: str) -> str:
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"}
        return output_of(["git", "-C", str(folder), *arguments], env=environment)

    return run
