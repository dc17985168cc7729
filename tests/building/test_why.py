"""Why a variant is a miss, in words: which package, in which version, not which digest."""

import re
from importlib import metadata
from typing import Any

import pytest
from msgspec.structs import replace

from pallasc.compiler.inputs.lookup import Lookup, Miss
from pallasc.compiler.inputs.manifest import Explainer
from pallasc.compiler.toolchain.identity import versions_of
from pallasc.compiler.toolchain.setup import prepare

DIGEST = re.compile("[0-9a-f]{64}")
SPEC = {"name": "scale", "entry": "scale.py:run"}


@pytest.fixture(scope="module")
def built(make_project: Any) -> Any:
    """Return a project whose one kernel is in the store; tests change its spec only."""
    project = make_project()
    project.write("scale.py", "def run(x):\n    return x * 2\n")
    project.write("table.txt", "1")
    project.write("more.txt", "1")
    project.spec({**SPEC, "files": ["table.txt"]})
    assert project.build().exit_code == 0
    return project


def explained(project: Any, before: str, now: str, **identity: str) -> str:
    """Return the explanation where the toolchain has other digests, and a part another version."""
    with prepare() as setup:
        versions = {
            name: text.replace(before, now) for name, text in versions_of(setup.toolchain).items()
        }
        context = setup.context(project.store)
    other = replace(context, identity={**context.identity, **identity}, versions=lambda: versions)
    lookup = Lookup(other, project.store)
    (variant,) = project.variants()
    miss = lookup.find(variant)
    assert isinstance(miss, Miss)
    (sentence,) = Explainer(lookup).explain(miss)
    return sentence


def test_another_numpy_is_named_with_both_versions(built: Any) -> None:
    version = f"numpy {metadata.version('numpy')}"
    found = explained(built, version, "numpy 0.0.1", **{"traced with": "0" * 64})
    clause = f"tracing packages: {version} before, numpy 0.0.1 here"
    assert found == f"compiled with another toolchain: {clause}"


def test_what_differs_beside_the_toolchain_is_shown_too(built: Any) -> None:
    built.write("table.txt", "1")
    built.spec({**SPEC, "files": ["table.txt"], "args": {"x": "f32[16, 128]"}})
    found = explained(built, "never", "never", ptxas="0" * 64, jax="1" * 64)
    assert found.startswith("its key differs in: args; compiled with another toolchain: ")
    assert "jax: other content of the same version" in found
    assert "ptxas: other content of the same version" in found
    assert not DIGEST.search(found)


def test_a_data_file_is_named(built: Any) -> None:
    for declared, content, labels in (
        (["table.txt"], "2", "data table.txt"),
        (["table.txt", "more.txt"], "1", "data more.txt, files"),
        ([], "1", "data table.txt, files"),
    ):
        built.write("table.txt", content)
        built.spec({**SPEC, "files": declared} if declared else SPEC)
        (result,) = built.build(compile=False, explain=True).results
        assert result.explanation == (f"its key differs in: {labels}",)
