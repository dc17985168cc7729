"""The parts of a toolchain for people: versions beside the digests that keys depend on.

A lock file holds them, and so does every manifest. So a single function (`specs/lock.differences`)
names the package and both versions wherever something was compiled with another toolchain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pallasc.cache.format import is_name
from pallasc.compiler.toolchain.identity import COMPUTED_WITH, TRACED_WITH
from pallasc.compiler.toolchain.installed import find_package
from pallasc.compiler.toolchain.toolchain import Toolchain, tool_version
from pallasc.specs.canonical import digest
from pallasc.specs.lock import VARIABLE, Component

_PACKAGES = {
    COMPUTED_WITH: ("cramjam", "llvmlite", "protobuf"),
    TRACED_WITH: ("ml_dtypes", "numpy", "opt_einsum", "scipy"),
}
"""The distributions that the identity counts under these labels."""

TRACING_PACKAGES = "tracing packages"
"""The label of the latter in a lock."""

_IN_A_LOCK = {COMPUTED_WITH: "packages", TRACED_WITH: TRACING_PACKAGES}

TOOL = "tool "
"""The prefix of the identity's labels in the fields of a request key."""


def versions_of(toolchain: Toolchain) -> dict[str, str]:
    """Return the versions of the parts that the labels of the identity name.

    Raises:
        ToolError: the assembler cannot be asked for its version.
    """
    from pallasc.version import installed_version

    versions = {package.name: package.version for package in toolchain.packages}
    listed = {label: filter(None, map(find_package, names)) for label, names in _PACKAGES.items()}
    return {
        **versions,
        "ptxas": tool_version(toolchain.ptxas),
        "pallasc": installed_version(),
        **{
            label: ", ".join(f"{package.name} {package.version}" for package in packages)
            for label, packages in listed.items()
        },
    }


def components(
    identity: Mapping[str, str], versions: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, Component]:
    """Return the parts that keys depend on, by the labels of a lock.

    Every action key depends on all of them but `TRACING_PACKAGES`, of which request keys do.

    Args:
        identity: digests of the toolchain by label.
        versions: those of `versions_of`.
        variables: the environment variables that reach the compiler.
    """
    named = {label: (value, versions.get(label, "")) for label, value in identity.items()}
    if "python" in identity:
        python = identity["python"].partition(",")[0].removeprefix("cpython ")
        named["python"] = (identity["python"], python)
    named |= {f"{VARIABLE}{name}": (value, "") for name, value in variables.items()}
    return {
        _IN_A_LOCK.get(label, label): Component(
            value if is_name(value) else digest(value.encode()), version
        )
        for label, (value, version) in named.items()
    }


def package_components(held: Mapping[str, str | None], versions: Any) -> dict[str, Component]:
    """Return installed packages, by digests and versions, as components; without those missing."""
    told = versions if isinstance(versions, Mapping) else {}
    return {
        name: Component(held_digest, str(told.get(name, "")))
        for name, held_digest in held.items()
        if held_digest is not None
    }


def components_in(fields: Mapping[str, str], versions: Any) -> dict[str, Component]:
    """Return the components that the fields of a request key name, as a manifest has them."""
    told = versions if isinstance(versions, Mapping) else {}
    return components(
        {k.removeprefix(TOOL): v for k, v in fields.items() if k.startswith(TOOL)},
        {str(label): str(version) for label, version in told.items()},
        {k.removeprefix(VARIABLE): v for k, v in fields.items() if k.startswith(VARIABLE)},
    )
