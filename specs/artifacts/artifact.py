"""The artifact of a compiled variant, its resources, and limits of resources.

An artifact is a record that lists all parts of a compiled variant by digest. The record, schema 1,
is canonical JSON (`specs/canonical.py`), and its SHA-256 is the artifact's digest:

* `schema`: 1
* `target`: the model's figures (`specs/gpus.py`), `name` included
* `toolchain`: versions of jax, jaxlib, plugin, and assembler; digests of the compiling components
* `minimum_driver`: `cuda` ("13.0", the driver API) and `linux` ("580.65.06", the driver package)
* `plan`: the launch plan (`specs/artifacts/plan.py`)
* `kernels`: one entry for each launched kernel, see `KernelResources`
* `blobs`: digest -> size in bytes, for cubins, PTX, and constants

It has no variant names, folders, or times: the same compilation gives the same digest everywhere.

Occupancy is the number of blocks of a launch that a multiprocessor holds at once. From the CUDA
Occupancy Calculator: registers are allocated to warps in units of 256, and the number of warps is a
multiple of 4, one for each partition of a multiprocessor. From compute capability 8.0 on, each
block uses 1,024 bytes of shared memory for the system.

A budget limits the fields of `Resources` by absolute numbers, or by rules relative to a baseline:

    limit   = whole number | rule
    rule    = sign amount [ "." digits ] [ " " ] "%" | sign amount | ( "<=" | ">=" ) " " "baseline"
    sign    = "+" | "-"

Only "%" allows a fraction. Numbers that should be small take "+" and "<="; occupancy, which should
be large, takes "-" and ">=".
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict, cast

from msgspec import Raw, Struct, convert, json
from msgspec.structs import astuple

from pallasc.errors import BudgetError, CorruptError
from pallasc.specs.artifacts import cached_property
from pallasc.specs.canonical import Natural, Positive, StrictStruct, canonical_json, digest
from pallasc.specs.gpus import ARCHITECTURES, MOST_BLOCKS_PER_SM, Target

if TYPE_CHECKING:
    from pallasc.specs.artifacts.plan import Launch, LaunchPlan
    from pallasc.specs.artifacts.source_lines import SourceLines
    from pallasc.specs.spec import Budget

ARTIFACT_SCHEMA = 1


class ArtifactRecord(TypedDict):
    """JSON of an artifact."""

    schema: int
    target: Mapping[str, Any]
    toolchain: Mapping[str, Any]
    minimum_driver: NotRequired[Mapping[str, str]]
    plan: Mapping[str, Any]
    kernels: Sequence[Any]
    blobs: Mapping[str, int]


class KernelResources(StrictStruct, frozen=True):
    """The resources of one kernel, as the assembler reports them.

    Attributes:
        name: the kernel in its cubin.
        cubin: digest of the cubin.
        ptx: digest of its PTX, None for XLA's kernels, which come without PTX.
        origin: "mosaic" or "xla".
        registers: registers per thread.
        stack_bytes: stack frame per thread.
        spill_store_bytes, spill_load_bytes: bytes per thread; None if there is a stack frame and
            the assembler's report is missing.
        static_smem_bytes, dynamic_smem_bytes: shared memory per block.
        barriers: named barriers per block.
    """

    name: str
    cubin: str
    ptx: str | None
    origin: str
    registers: Natural
    stack_bytes: Natural
    spill_store_bytes: Natural | None
    spill_load_bytes: Natural | None
    static_smem_bytes: Natural
    dynamic_smem_bytes: Natural
    barriers: Natural

    @property
    def smem_bytes(self) -> int:
        """Static plus dynamic shared memory."""
        return self.static_smem_bytes + self.dynamic_smem_bytes

    @property
    def spill_bytes(self) -> int | None:
        """Spill stores plus spill loads, None if unknown."""
        if self.spill_store_bytes is None or self.spill_load_bytes is None:
            return None
        return self.spill_store_bytes + self.spill_load_bytes


_UNSET: Any = None
"""A field that a step lacks. In a record, null is an error."""


class LaunchSize(Struct, frozen=True):
    """Resources that a launch uses on a multiprocessor, in addition to its kernel's.

    Other steps of a plan are read as this type too; they may lack every field but `kind`.

    Attributes:
        kind: "launch".
        kernel: the kernel in its cubin.
        cubin: digest of the cubin.
        block: dimensions of a block, in threads.
        dynamic_smem_bytes: dynamic shared memory per block.
    """

    kind: str
    kernel: str = _UNSET
    cubin: str = _UNSET
    block: tuple[Positive, Positive, Positive] = _UNSET
    dynamic_smem_bytes: Natural = _UNSET

    def __post_init__(self) -> None:
        if self.kind == "launch" and None in astuple(self):
            raise ValueError("a launch lacks its kernel, cubin, block, or dynamic_smem_bytes")


class _Plan(Struct):
    steps: tuple[LaunchSize, ...]


class _Parts(Struct):
    """The parts of a record that are checked when it is read; `plan` checks the whole plan."""

    schema: Literal[1]
    target: Target
    toolchain: dict[str, Any]
    plan: _Plan
    kernels: tuple[KernelResources, ...]
    blobs: dict[str, int]
    minimum_driver: dict[str, str] = {}


class Artifact:
    """A compiled variant: its record, and a function that reads its blobs.

    Args:
        record: the artifact's JSON; or its canonical text, which is not kept in memory.
        read_blob: returns the bytes for a digest; they are checked here.
        load: loads the record when it is needed, if it was given as text.

    Attributes:
        target: the model that it was compiled for.
        kernels: the kernels that the plan launches, in the order of their first launch.
        launch_sizes: size of each launch in the plan.
        source_lines: reads the source lines from the artifact's bundle; returns None outside of
            bundles, and if there are none.
        find_ptx: finds the PTX of kernels that come without it, by the digest of their cubin; None
            if it is unknown how the artifact was compiled, as in a bundle or the store.

    Raises:
        CorruptError: the record has another schema, or a part of it is missing or damaged.
    """

    def __init__(
        self,
        record: Mapping[str, object] | ArtifactRecord | Raw,
        read_blob: Callable[[str], bytes],
        load: Callable[[], Mapping[str, object]] | None = None,
    ) -> None:
        parts = _checked(record)
        self.launch_sizes = tuple([step for step in parts.plan.steps if step.kind == "launch"])
        self.target, self.kernels, self._sizes = parts.target, parts.kernels, parts.blobs
        for kernel in self.kernels:
            self.blob_bytes(kernel.cubin)
            if kernel.ptx:
                self.blob_bytes(kernel.ptx)
        if isinstance(record, Raw):
            self.__dict__["digest"] = digest(record)
        self._load = load or (lambda: cast(ArtifactRecord, record))
        self._read_blob = read_blob
        self.find_ptx: Callable[[], Mapping[str, str]] | None = None
        self.source_lines: Callable[[], SourceLines | None] = lambda: None

    def __repr__(self) -> str:
        return f"<Artifact {self.digest[:12]} for {self.target.name}>"

    @property
    def record(self) -> ArtifactRecord:
        """The artifact's JSON.

        Raises:
            CorruptError: the record was not in memory and can no longer be loaded.
        """
        return cast(ArtifactRecord, self._load())

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical record."""
        return digest(canonical_json(self.record))

    @cached_property
    def plan(self) -> "LaunchPlan":
        """The checked launch plan."""
        from pallasc.specs.artifacts.plan import plan_from_json

        plan = plan_from_json(self.record["plan"])
        for launch in plan.launches:
            self.blob_bytes(launch.cubin)
        for number, buffer in enumerate(plan.buffers):
            if buffer.digest and (size := self.blob_bytes(buffer.digest)) != buffer.size:
                raise CorruptError(f"constant {number} has {size} bytes, not {buffer.size}")
        return plan

    def kernel_of(self, launch: "Launch | LaunchSize") -> KernelResources:
        """Return the kernel of a launch.

        Raises:
            CorruptError: the artifact has no such kernel.
        """
        return self._kernel(launch.kernel, launch.cubin)

    @cached_property
    def resources(self) -> "Resources":
        """Its resources.

        Raises:
            CorruptError: a launch has no kernel.
        """
        return Resources(*(_worst(self, field)[1] for field in Resources._fields))

    @property
    def toolchain(self) -> Mapping[str, Any]:
        """Versions and digests of the toolchain that compiled it."""
        return self.record["toolchain"]

    @property
    def versions(self) -> dict[str, str]:
        """Versions of JAX's packages and of the assembler."""
        versions = {**self.toolchain.get("versions", {}), "ptxas": self.toolchain.get("ptxas")}
        return {name: str(version) for name, version in versions.items()}

    @cached_property
    def cubin_bytes(self) -> int:
        """Total size of its cubins."""
        return sum(self.blob_bytes(key) for key in {kernel.cubin for kernel in self.kernels})

    @property
    def spill_bytes(self) -> int:
        """Spill bytes of the kernel that spills most; 0 if unknown."""
        return max((kernel.spill_bytes or 0 for kernel in self.kernels), default=0)

    def blob(self, key: str) -> bytes:
        """Return the bytes with the digest `key`.

        Raises:
            CorruptError: the artifact does not list `key`, or the bytes have another digest.
        """
        size, data = self.blob_bytes(key), self._read_blob(key)
        if len(data) != size or digest(data) != key:
            raise CorruptError(f"blob {key} does not match its digest")
        return data

    def cubin(self, kernel: str | None = None) -> bytes:
        """Return the cubin of a kernel, by default of the first one."""
        return self.blob(self._kernel(kernel).cubin)

    def ptx(self, kernel: str | None = None) -> str:
        """Return the PTX of a kernel, "" for XLA's kernels."""
        key = self._kernel(kernel).ptx
        return self.blob(key).decode() if key else ""

    def blobs(self) -> dict[str, bytes]:
        """Return all blobs by digest."""
        return {key: self.blob(key) for key in self._sizes}

    def blob_bytes(self, key: str) -> int:
        """Return the recorded size of the blob with the digest `key`.

        Raises:
            CorruptError: the artifact does not list it.
        """
        size = self._sizes.get(key)
        if size is None:
            raise CorruptError(f"the artifact names no blob {key}")
        return size

    def _kernel(self, name: str | None, cubin: str | None = None) -> KernelResources:
        for kernel in self.kernels:
            if name in (None, kernel.name) and cubin in (None, kernel.cubin):
                return kernel
        raise CorruptError(f"the artifact has no kernel {name}")


def _checked(record: Any) -> _Parts:
    """Return the checked parts of a record."""
    is_text = isinstance(record, Raw)
    try:
        return json.decode(record, type=_Parts) if is_text else convert(record, _Parts)
    except (ValueError, RecursionError) as error:
        with suppress(ValueError, RecursionError):
            record = json.decode(record) if is_text else record
        schema = record.get("schema") if isinstance(record, Mapping) else None
        if schema != ARTIFACT_SCHEMA:
            raise CorruptError(f"artifact schema {schema!r} instead of {ARTIFACT_SCHEMA}") from None
        raise CorruptError(f"the artifact's record is damaged: {error}") from error


# ---- resources


class Resources(NamedTuple):
    """Resource usage of a variant; None for unknown.

    If a variant has several kernels, each number is from the most demanding one.

    Attributes:
        registers: registers per thread.
        spill_bytes: bytes of spill stores plus spill loads per thread.
        stack_bytes: stack frame per thread.
        smem_bytes: static plus dynamic shared memory per block.
        occupancy: resident warps per multiprocessor, the minimum over all launches.
        cubin_bytes: total size of the variant's cubins.
    """

    registers: int | None = None
    spill_bytes: int | None = None
    stack_bytes: int | None = None
    smem_bytes: int | None = None
    occupancy: int | None = None
    cubin_bytes: int | None = None


WORDS = {
    **{name: name.replace("_", " ") for name in Resources._fields},
    "smem_bytes": "shared memory bytes",
    "occupancy": "resident warps",
}
"""Words for each number, as in "has 40 registers"."""

MORE_IS_BETTER = frozenset({"occupancy"})
"""Numbers that should be high; the others should be low."""


class Rule(NamedTuple):
    """Allowed difference between a number and its baseline.

    Attributes:
        text: the rule as written: `+8`, `+10 %`, `<= baseline`.
        amount: allowed increase or decrease, in millionths.
        percent: True if the amount is a percentage of the baseline.
    """

    text: str
    amount: int
    percent: bool

    def limit(self, before: int) -> int:
        """Return the limit of the number, given its baseline `before`."""
        change = self.amount * (before if self.percent else 100) // 10**8
        return before - change if self.text[0] in "->" else before + change


def rule_pattern(field: str) -> str:
    """Return the regular expression of the rules for a field, for Python and for JSON schemas."""
    sign, order = ("-", ">=") if field in MORE_IS_BETTER else (r"\+", "<=")
    amount = r"([0-9]{1,12})((\.[0-9]{1,6})?\s*%)?"
    return rf"\s*({order}\s*baseline|({sign})\s*{amount})\s*"


def parse_rule(text: str, field: str) -> Rule:
    """Parse a rule for a field of `Resources`.

    Raises:
        ValueError: the text is not one.
    """
    match = re.fullmatch(rule_pattern(field), text)
    if match is None:
        raise ValueError(f"{text!r} is not a rule for {field}")
    _, sign, whole, percent, part = match.groups(default="")
    if not sign:
        return Rule(f"{text.strip()[:2]} baseline", 0, percent=False)
    amount = int(whole + part[1:].ljust(6, "0"))
    return Rule(f"{sign}{whole}{part}{' %' if percent else ''}", amount, bool(percent))


def rules_for(field: str) -> tuple[str, ...]:
    """Return an example of each rule that a field accepts."""
    more = field in MORE_IS_BETTER
    return ("-8", "-10 %", ">= baseline") if more else ("+8", "+10 %", "<= baseline")


REGISTERS_PER_SM = 65536
_WARP_THREADS = 32
_REGISTER_UNIT = 256
_WARP_UNIT = 4
_RESERVED_SMEM_BYTES = 1024


def blocks_by_limit(
    launch: "Launch | LaunchSize", kernel: KernelResources, target: Target
) -> dict[str, int]:
    """Return how many blocks of a launch each resource of a multiprocessor allows.

    The resources are "registers", "shared memory", "threads", and "blocks". The smallest of their
    numbers is the limit.

    Args:
        launch: the launch.
        kernel: resources of its kernel.
        target: the model. An unknown architecture gets the highest limit on blocks.
    """
    smem = launch.dynamic_smem_bytes + kernel.static_smem_bytes + _RESERVED_SMEM_BYTES
    row = ARCHITECTURES.get((target.major, target.minor))
    warps = warps_of_block(launch)
    return {
        "registers": _warps_with_registers(kernel) // warps,
        "shared memory": target.smem_per_sm_bytes // smem,
        "threads": target.threads_per_sm // (_WARP_THREADS * warps),
        "blocks": row.blocks_per_sm if row else MOST_BLOCKS_PER_SM,
    }


def blocks_per_sm(launch: "Launch | LaunchSize", kernel: KernelResources, target: Target) -> int:
    """Return the number of blocks of a launch that one multiprocessor holds."""
    return max(1, min(blocks_by_limit(launch, kernel, target).values()))


def warps_of_block(launch: "Launch | LaunchSize") -> int:
    """Return the number of warps in a block of a launch."""
    return -(-math.prod(launch.block) // _WARP_THREADS)


def _warps_with_registers(kernel: KernelResources) -> int:
    units = -(-max(kernel.registers, 1) * _WARP_THREADS // _REGISTER_UNIT)
    return REGISTERS_PER_SM // (units * _REGISTER_UNIT) // _WARP_UNIT * _WARP_UNIT


def check_budget(
    artifact: Artifact,
    budget: "Budget",
    *,
    before: Resources = Resources(),  # noqa: B008
    baseline: str = "the baseline",
) -> BudgetError | None:
    """Return the error for all limits that the artifact exceeds, None if there are none.

    Args:
        artifact: the compiled artifact.
        budget: its limits.
        before: its baseline resources; a rule is satisfied if its baseline number is unknown.
        baseline: name of the baseline for messages.

    Raises:
        CorruptError: the artifact's plan or target is damaged.
    """
    clauses: list[tuple[str, str]] = []
    for field in filter(budget.__contains__, Resources._fields):
        limit, previous = budget[field], getattr(before, field)
        bound, is_lower = _bound(limit, field, previous), field in MORE_IS_BETTER
        if bound is None:
            continue
        kernel, number = _worst(artifact, field)
        if number is None:
            text = f"{kernel}: {WORDS[field]} are not known; the budget is {limit}"
            clauses.append((field, text))
        elif number < bound if is_lower else number > bound:
            least = "at least " if is_lower and bound == limit else ""
            where = f" ({previous} in {baseline})" if bound != limit else ""
            text = f"{kernel or 'the variant'} has {number} {WORDS[field]}"
            clauses.append((field, f"{text}; the budget is {least}{limit}{where}"))
    if not clauses:
        return None
    return BudgetError(
        "\n".join(text for _, text in clauses),
        hint="Change the kernel, such as its tile sizes, or the limit.",
        kind=clauses[0][0],
    )


def _bound(limit: int | str | None, field: str, before: int | None) -> int | None:
    """Return a limit as a number, None if the baseline of a rule is unknown."""
    if limit is None or isinstance(limit, int):
        return limit
    return None if before is None else parse_rule(limit, field).limit(before)


def _worst(artifact: Artifact, field: str) -> tuple[str, int | None]:
    """Return the most demanding kernel for a resource and its number, None if unknown."""
    if field == "cubin_bytes":
        return "", artifact.cubin_bytes
    if field == "occupancy":
        model, launches = artifact.target, artifact.launch_sizes
        warps = [
            (blocks_per_sm(each, artifact.kernel_of(each), model) * warps_of_block(each), each)
            for each in launches
        ]
        number, launch = min(warps, key=lambda pair: pair[0], default=(None, None))
        return launch.kernel if launch else "", number
    numbers = [(kernel.name, getattr(kernel, field)) for kernel in artifact.kernels]
    return max(numbers, key=lambda pair: math.inf if pair[1] is None else pair[1], default=("", 0))
