"""GPU architectures, drivers, and models: one row for each, with all their data.

The figures of models come from OpenXLA's target specs if these include the model
(`xla/backends/gpu/target_config/specs`, read in 2026). The figures of L40S, GH200, Jetson Thor, and
GB10, and of all architectures, come from NVIDIA's data sheets, deviceQuery, and the table of
compute capabilities in the CUDA programming guide. The features of architectures come from the PTX
ISA ("Target ISA Notes" of each instruction), and the drivers from the table "CUDA Toolkit and
Corresponding Driver Versions" in the CUDA release notes.

`resolve_target` finds the model for a name in a spec.
"""

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from pallasc.errors import Location, SpecError
from pallasc.specs.canonical import Number, Positive
from pallasc.specs.spelling import one_of, suggestion

ARCH = re.compile(r"sm_(?P<major>\d+)(?P<minor>\d)(?P<suffix>[a-z]?)")

LINUX_DRIVERS: Mapping[tuple[int, int], str] = {
    (12, 0): "525.60.13",
    (12, 8): "570.26",
    (12, 9): "575.51.03",
    (13, 0): "580.65.06",
}
"""Minimum Linux driver for each CUDA release that an architecture or a toolkit may need."""

Feature = Literal[
    "clusters", "tma", "setmaxnreg", "griddepcontrol", "cluster_cancel", "wgmma", "tcgen05"
]
"""Features beyond sm_80: thread block clusters, asynchronous copies by TMA, or the instructions
with this name; `cluster_cancel` is `clusterlaunchcontrol`."""

_AMPERE: frozenset[Feature] = frozenset()
_HOPPER: frozenset[Feature] = frozenset({"clusters", "tma", "setmaxnreg", "griddepcontrol"})
_BLACKWELL: frozenset[Feature] = _HOPPER | {"cluster_cancel"}


class Architecture(NamedTuple):
    """A GPU architecture.

    Attributes:
        name: with its suffix, `sm_90a`, as Mosaic GPU compiles for it.
        model: the model that the bare name means, or "" if pallasc does not compile for it. Such a
            row describes GPUs that may have to run the code of another architecture.
        driver: first CUDA driver API version that supports it, a key of `LINUX_DRIVERS`; 12.0 also
            stands for all earlier versions.
        blocks_per_sm: maximum resident blocks per multiprocessor.
        features: features beyond sm_80.
        reserved_smem_bytes: shared memory reserved for the system, included in a cubin's sections.
        embedded: True if it cannot run code of other architectures with its major number.
    """

    name: str
    model: str
    driver: tuple[int, int]
    blocks_per_sm: int
    features: frozenset[Feature]
    reserved_smem_bytes: int
    embedded: bool


IN_NO_KEY = frozenset({"name", "model", "blocks_per_sm", "embedded"})
"""Columns that do not affect artifacts and are in no key. Keys have the capability and suffix
instead of `name`, and the figures of the model instead of `model`. `blocks_per_sm` is for reports;
`embedded` is for choosing a variant at launch."""

_ROWS = (
    Architecture("sm_80", "a100-sxm", (12, 0), 32, _AMPERE, 0, embedded=False),
    Architecture("sm_86", "a6000", (12, 0), 16, _AMPERE, 0, embedded=False),
    Architecture("sm_87", "", (12, 0), 16, _AMPERE, 0, embedded=True),
    Architecture("sm_88", "", (12, 0), 32, _AMPERE, 0, embedded=True),
    Architecture("sm_89", "l40s", (12, 0), 24, _AMPERE, 0, embedded=False),
    Architecture("sm_90a", "h100-sxm", (12, 0), 32, _HOPPER | {"wgmma"}, 1024, embedded=False),
    Architecture("sm_100a", "b200", (12, 8), 32, _BLACKWELL | {"tcgen05"}, 1024, embedded=False),
    Architecture("sm_101a", "", (12, 8), 32, _BLACKWELL | {"tcgen05"}, 1024, embedded=True),
    Architecture("sm_103a", "b300", (12, 9), 32, _BLACKWELL | {"tcgen05"}, 1024, embedded=False),
    Architecture("sm_110a", "thor", (13, 0), 24, _BLACKWELL | {"tcgen05"}, 1024, embedded=True),
    Architecture("sm_120a", "rtx-pro-6000", (12, 8), 24, _BLACKWELL, 1024, embedded=False),
    Architecture("sm_121a", "gb10", (12, 9), 24, _BLACKWELL, 1024, embedded=False),
)


class Target(Struct, frozen=True):
    """A GPU model with the figures that the compiler uses.

    Attributes:
        name: the model, `h100-sxm`.
        arch: the architecture with its suffix, `sm_90a`.
        sm_count: streaming multiprocessors.
        smem_optin_bytes: maximum shared memory of one block (opt-in).
        smem_per_sm_bytes: shared memory of one multiprocessor.
        threads_per_sm: maximum resident threads of one multiprocessor.
        fpus_per_sm: single-precision units of one multiprocessor.
        memory_bandwidth_bytes_per_s: peak bandwidth of the device memory.
        l2_bytes: size of the L2 cache.
        clock_ghz: boost clock.
        memory_bytes: size of the device memory.
        description: device name, from OpenXLA's specs for a built-in model, from the driver for a
            model that a spec adds. `device_names` has all names.
    """

    name: str
    arch: Annotated[str, Meta(pattern=rf"\A{ARCH.pattern}\Z")]
    sm_count: Positive
    smem_optin_bytes: Positive
    smem_per_sm_bytes: Positive
    threads_per_sm: Positive
    fpus_per_sm: Positive
    memory_bandwidth_bytes_per_s: Positive
    l2_bytes: Positive
    clock_ghz: Number
    memory_bytes: Positive
    description: str

    @property
    def major(self) -> int:
        """Return the major number of the compute capability, 9 for `sm_90a`."""
        return capability(self.arch)[0]

    @property
    def minor(self) -> int:
        """Return the minor number of the compute capability, 0 for `sm_90a`."""
        return capability(self.arch)[1]

    @property
    def suffix(self) -> str:
        """Return `a` for an accelerated architecture, else an empty string."""
        return re.sub(r"sm_\d+", "", self.arch)

    @property
    def features(self) -> frozenset[Feature]:
        """Return the architecture's features beyond sm_80."""
        row = ARCHITECTURES.get((self.major, self.minor))
        return row.features if row else _AMPERE

    def figures(self) -> dict[str, str | int | float]:
        """Return the fields that affect compilation: all but the model's name."""
        return {key: value for key, value in asdict(self).items() if key != "name"}

    def facts(self) -> dict[str, object]:
        """Return the data in this module, beyond the figures, that a compilation depends on.

        Keys contain these values instead of this file, so a new row or a comment changes no key.
        They are all columns of the architecture's row except `IN_NO_KEY`.
        """
        row = ARCHITECTURES[self.major, self.minor]
        # The driver may be required by the architecture or by the toolkit's major version.
        drivers = {api for api in LINUX_DRIVERS if api[1] == 0} | {row.driver}
        return {
            **{name: value for name, value in row._asdict().items() if name not in IN_NO_KEY},
            "capability": [self.major, self.minor],
            "suffix": self.suffix,
            "features": sorted(row.features),
            "linux_drivers": [[*api, LINUX_DRIVERS[api]] for api in sorted(drivers)],
        }


def capability(arch: str) -> tuple[int, int]:
    """Return the compute capability of an architecture, (9, 0) for `sm_90a`."""
    return divmod(int(re.sub(r"\D", "", arch)), 10)


@cache
def reserved_smem_bytes(sm: int) -> int:
    """Return the shared memory reserved for the system, included in a cubin's sections.

    Args:
        sm: 10 × major + minor of the compute capability. If it has no row, the row with the next
            lower capability is used.
    """
    older = [row for key, row in ARCHITECTURES.items() if key <= divmod(sm, 10)]
    return older[-1].reserved_smem_bytes if older else 0


# Figures of each architecture's multiprocessor: `smem_optin_bytes`, `smem_per_sm_bytes`,
# `threads_per_sm`, `fpus_per_sm`.
_MULTIPROCESSORS = {
    "sm_80": (166912, 167936, 2048, 64),
    "sm_86": (101376, 102400, 1536, 128),
    "sm_89": (101376, 102400, 1536, 128),
    "sm_90a": (232448, 233472, 2048, 128),
    "sm_100a": (232448, 233472, 2048, 128),
    "sm_103a": (232448, 233472, 2048, 128),
    "sm_110a": (232448, 233472, 1536, 128),
    "sm_120a": (101376, 131072, 1536, 128),
    "sm_121a": (101376, 102400, 1536, 128),
}
_BUILT_IN = (
    # name, architecture, description; multiprocessors, memory bandwidth, L2 cache, clock, memory
    ("a100-sxm", "sm_80", "NVIDIA A100-SXM4-80GB",
     108, 2_039_040_000_000, 41943040, 1.41, 85100068864),
    ("a100-sxm-40gb", "sm_80", "NVIDIA A100-SXM4-40GB",
     108, 1_555_200_000_000, 41943040, 1.41, 42331013120),
    ("a100-pcie", "sm_80", "NVIDIA A100 80GB PCIe",
     108, 2_039_000_000_000, 41943040, 1.1105, 79050250240),
    ("a6000", "sm_86", "NVIDIA RTX A6000",
     84, 768_096_000_000, 6291456, 1.8, 51041271808),
    ("l40s", "sm_89", "NVIDIA L40S",
     142, 864_000_000_000, 100663296, 2.52, 48_000_000_000),
    ("h100-sxm", "sm_90a", "NVIDIA H100 80GB HBM3",
     132, 3_352_320_000_000, 52428800, 1.98, 84942979072),
    ("h100-pcie", "sm_90a", "NVIDIA H100 PCIe",
     114, 2_039_040_000_000, 52428800, 1.755, 84942979072),
    ("h200", "sm_90a", "NVIDIA H200 141GB HBM3e",
     132, 4_800_000_000_000, 52428800, 1.98, 151397597184),
    ("gh200", "sm_90a", "NVIDIA GH200 96GB HBM3",
     132, 4_000_000_000_000, 52428800, 1.98, 96_000_000_000),
    ("b200", "sm_100a", "NVIDIA B200",
     148, 7_672_320_000_000, 132644864, 1.965, 191514411008),
    ("gb200", "sm_100a", "NVIDIA GB200",
     152, 7_928_064_000_000, 135528448, 2.062, 197897748480),
    ("b300", "sm_103a", "NVIDIA B300",
     158, 7_936_000_000_000, 135528448, 1.965, 297021865984),
    ("gb300", "sm_103a", "NVIDIA GB300",
     152, 7_928_064_000_000, 135528448, 2.07, 297021079552),
    ("thor", "sm_110a", "NVIDIA Thor",
     20, 273_000_000_000, 33554432, 1.575, 128_000_000_000),
    ("rtx-pro-6000", "sm_120a", "NVIDIA RTX PRO 6000 Blackwell",
     188, 1_792_000_000_000, 134217728, 2.6, 103079215104),
    ("gb10", "sm_121a", "NVIDIA GB10",
     48, 273_000_000_000, 25165824, 2.418, 128_000_000_000),
)  # fmt: skip


ARCHITECTURES: Mapping[tuple[int, int], Architecture] = {capability(row.name): row for row in _ROWS}
"""All known architectures, by compute capability."""

MOST_BLOCKS_PER_SM = max(row.blocks_per_sm for row in _ROWS)
"""Used for architectures without a row."""

DEFAULT_MODELS: Mapping[str, str] = {row.name: row.model for row in _ROWS if row.model}
"""The architectures that pallasc compiles for, and the model that each bare name means."""

MODELS: Mapping[str, Target] = {
    name: Target(
        name, arch, count, *_MULTIPROCESSORS[arch], bandwidth, l2, clock, memory, description
    )
    for name, arch, description, count, bandwidth, l2, clock, memory in _BUILT_IN
}
"""Every built-in model by name, older architectures first."""

_OTHER_NAMES: Mapping[str, tuple[str, ...]] = {
    "NVIDIA H200 141GB HBM3e": ("NVIDIA H200",),
    "NVIDIA GH200 96GB HBM3": ("NVIDIA GH200 480GB", "NVIDIA GH200 120GB"),
    "NVIDIA B300": ("NVIDIA B300 SXM6 AC",),
    "NVIDIA RTX PRO 6000 Blackwell": (
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    ),
}
"""The drivers' names of models that have other names in OpenXLA's target specs. vLLM and SGLang
use them in names of files (`device_name=NVIDIA_H200.json`). The memory sizes in GH200's names are
the CPU's. Max-Q editions, which have another clock, and H200 NVL are different models."""

FIGURES: tuple[str, ...] = tuple(
    name for name in Target.__struct_fields__ if name not in ("name", "arch", "description")
)
"""The numeric fields of a target; all are positive."""


def device_names(description: str) -> tuple[str, ...]:
    """Return all driver names of the model with this description, including the description."""
    return (description, *_OTHER_NAMES.get(description, ()))


_LIKE_ARCH = r"(?:sm|compute)?[-_ ]?(?P<major>\d{1,2})\.?(?P<minor>\d)[a-z]?"
_NONE: Mapping[str, Target] = {}


def resolve_target(
    name: str, extra: Mapping[str, Target] = _NONE, *, location: Location | None = None
) -> Target:
    """Return the model with this name; an architecture means its default model.

    Args:
        name: a model (`h200`) or an architecture (`sm_90a`).
        extra: models that the user's spec adds.
        location: position of the name, if it is in a spec.

    Raises:
        SpecError: the target is unknown, or the architecture lacks its suffix.
    """
    target = extra.get(name) or MODELS.get(DEFAULT_MODELS.get(name, name))
    if target is not None:
        return target
    known = [*MODELS, *DEFAULT_MODELS, *extra]
    hint = target_suggestion(name, known, otherwise="See `pallasc targets`. Some are")
    raise SpecError(f"unknown target {name!r}.", location=location, hint=hint)


def make_model(name: str, fields: Mapping[str, Any], known: Mapping[str, Target] = _NONE) -> Target:
    """Return a user-defined model.

    Args:
        name: its name in specs.
        fields: `like`, the base model; `arch`, the architecture; and the fields of `Target` that
            differ from the base model. Without `like`, the base is the default model of `arch`;
            without `arch`, `like` gives it.
        known: user-defined models that `like` may name.

    Raises:
        SpecError: the name is taken, the architecture or the base model is unknown, or neither is
            given.
    """
    if name in MODELS or name in DEFAULT_MODELS:
        raise SpecError(f"model {name!r} is built in.", hint="Choose another name.")
    arch = fields.get("arch")
    base_name = fields.get("like", arch)
    if base_name is None:
        raise SpecError(
            f"model {name!r} has no architecture.",
            hint="Add an architecture, such as arch: sm_90a.",
        )
    if arch is not None and arch not in DEFAULT_MODELS:
        hint = target_suggestion(arch, DEFAULT_MODELS, otherwise="Architectures")
        raise SpecError(f"unknown architecture {arch!r}.", hint=hint)
    own = {key: value for key, value in fields.items() if key != "like"}
    return replace(resolve_target(base_name, known), **{"description": name, **own, "name": name})


def target_suggestion(name: str, known: Collection[str], *, otherwise: str) -> str | None:
    """Return the hint for an unknown name.

    It suggests the first of these that exists: the architecture in another spelling; the names that
    begin with `name`, or with which `name` begins; all architectures, for an unknown one; the
    nearest name. A name with a comma is meant as a list; the hint shows how to write one.
    """
    if "," in name:
        return "Write --target sm_90a --target b200, or [sm_90a, b200] in a spec."
    like = re.fullmatch(_LIKE_ARCH, name.lower())
    number = f"sm_{like['major']}{like['minor']}" if like else ""
    near = [arch for arch in (f"{number}a", number) if arch in known][:1]
    near = near or [
        word
        for word in known
        if word.startswith(f"{name.lower()}-") or name.lower().startswith(f"{word}-")
    ]
    if near:
        return f"Did you mean {one_of(near)}?"
    if like:
        return f"Architectures: {', '.join(arch for arch in known if arch.startswith('sm_'))}."
    return suggestion(name, known, otherwise=otherwise)
