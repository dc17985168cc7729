"""The two central records: a spec as its author declares it, and a variant of it to compile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct, field
from msgspec.structs import asdict, replace

from pallasc.errors import Location, SpecError
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.canonical import variant_id
from pallasc.specs.gpus import Target
from pallasc.specs.spelling import show
from pallasc.specs.templates import Scalar, Value

if TYPE_CHECKING:
    from pallasc.specs.tuning import Tune, Tuning

    ArgTree = ArraySpec | Scalar | list["ArgTree"] | dict[str, "ArgTree"]
    """An argument: an array, `null`, or lists and mappings of them.

    A mapping with `$tuple` is a tuple; one with `$call` is the pytree node that the call gives, and
    only there scalars stand for themselves.
    """

    Args = dict[str, ArgTree] | list[ArgTree]
    """All arguments: by name, or by position."""
else:
    ArgTree = Args = Tune = Tuning = Any  # for msgspec, which has no recursive types

MOST_DEVICES = 256
"""Devices of a mesh."""

Mesh = tuple[tuple[str, int], ...]
"""Axes and their sizes; empty for one device."""


class Tolerance(Struct, frozen=True):
    """How far a kernel may be from its reference: `|a - b| <= atol + rtol * |b|`."""

    rtol: int | float | None = None
    atol: int | float | None = None


class Budget(Struct, frozen=True):
    """What a variant may use: numbers, rules relative to a baseline, or None for no limit.

    A rule is text as `budget_rules` normalises it: `+8`, `+10 %`, `<= baseline`.

    Attributes:
        registers: registers of a thread.
        spill_bytes: bytes of spill stores and spill loads of a thread together.
        stack_bytes: stack frame of a thread.
        smem_bytes: static and dynamic shared memory of a block.
        occupancy: the fewest warps that a multiprocessor may hold at once.
        cubin_bytes: size of all cubins of the variant.
    """

    registers: int | str | None = None
    spill_bytes: int | str | None = None
    stack_bytes: int | str | None = None
    smem_bytes: int | str | None = None
    occupancy: int | str | None = None
    cubin_bytes: int | str | None = None

    def rules(self) -> list[str]:
        """Return the fields that are relative to a baseline."""
        return [field for field in self.__struct_fields__ if isinstance(getattr(self, field), str)]


class Row(NamedTuple):
    """Values of parameters that a file gives together.

    Attributes:
        values: by parameter; every row of a spec has the same ones.
        location: place of the row.
    """

    values: dict[str, Value]
    location: Location


class Check(Struct, frozen=True):
    """What `pallasc check` runs in place of a variant: its spec's small sizes, filled in.

    Attributes:
        params, args, static, mesh, tolerance: as in `Variant`.
        seed: of the inputs, None where the spec does not say.
        names_args: the spec names arguments of a check, so that its parameters do not tell all.
    """

    params: tuple[tuple[str, Scalar], ...]
    args: Args
    static: dict[str, Value]
    mesh: Mesh
    tolerance: Tolerance | None
    seed: int | None = None
    names_args: bool = False


class Spec(Struct, frozen=True, eq=False):
    """A kernel as its author declares it; templates in it are checked but not filled.

    Attributes:
        name: the kernel.
        entry: `package.module:function`, or `file.py:function` relative to `base_dir`.
        args: arrays in their notation, by name or by position.
        static: static keyword arguments, `$call` and `$ref` nodes included.
        matrix: values of each parameter.
        rows: what a file gives, each row with every combination of the matrix.
        table: the file that the rows come from, relative to `base_dir`.
        include: further points, each a full one.
        exclude: partial points whose matches are dropped.
        tune: which parameters change only the speed; None where nothing is tuned.
        targets: names of targets.
        models: the models that the spec file adds.
        reference: entry of the function that gives the right result.
        tolerance: `rtol` and `atol`, numbers or templates.
        budget: limits by name, numbers or templates.
        files: data files that the kernel reads while it is traced, relative to `base_dir`.
        env: names of environment variables that it gets to see.
        mesh: axes of the devices that run the kernel together, with sizes, numbers or templates.
        check: values of parameters that `pallasc check` takes instead, `$args`, `$seed`,
            `$tolerance`.
        vmap: the kernel that does the same to a batch, for `jax.vmap`; None where there is none.
        location: where it is declared.
        base_dir: absolute folder of the spec file; no part of any key.
        locations: places of the fields, by dotted path (`args.a`, `exclude.0`).
    """

    name: str
    entry: str
    args: dict[str, Value] | list[Value]
    location: Location
    base_dir: str
    static: dict[str, Value] = field(default_factory=dict)
    matrix: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    rows: tuple[Row, ...] = ()
    table: str | None = None
    include: tuple[dict[str, Value], ...] = ()
    exclude: tuple[dict[str, Value], ...] = ()
    targets: tuple[str, ...] = ()
    models: dict[str, Target] = field(default_factory=dict)
    reference: str | None = None
    tolerance: dict[str, int | float | str] = field(default_factory=dict)
    budget: dict[str, int | str] = field(default_factory=dict)
    files: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    mesh: dict[str, int | str] = field(default_factory=dict)
    check: dict[str, Value] = field(default_factory=dict)
    vmap: str | None = None
    tune: Tune | None = None
    locations: Mapping[str, Location] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Spec) and _without_places(self) == _without_places(other)

    @property
    def axes(self) -> dict[str, tuple[Value, ...]]:
        """Return the values of each parameter of the matrix, then of those that are tuned."""
        return self.matrix if self.tune is None else {**self.matrix, **self.tune.over}

    def where(self, *path: str | int) -> Location:
        """Return the place of a field, or of the nearest thing around it that has one."""
        for length in range(len(path), 0, -1):
            place = self.locations.get(".".join(map(str, path[:length])))
            if place is not None:
                return place
        return self.location


class Variant(Struct, frozen=True, eq=False):
    """One point of a spec's matrix on one target: everything filled in.

    Attributes:
        name: the kernel.
        params: parameters of this point and what their values are called (`templates`), in the
            order of the matrix.
        target: the model it is compiled for.
        entry: as in `Spec`.
        args: the arrays; a mapping is passed by name, a list by position.
        static: static keyword arguments, `$call` and `$ref` nodes kept, keys sorted.
        reference: as in `Spec`.
        tolerance: how far results may differ, None when the spec does not say.
        budget: what the variant may use.
        files: as in `Spec`, sorted.
        location: where the kernel is declared.
        base_dir: as in `Spec`.
        mesh: axes and sizes of the devices that run it together; empty for one device.
        env: as in `Spec`, sorted.
        check: what is checked in its place, None for the variant itself.
        vmap: as in `Spec`.
        tuning: what a table says of it, None where nothing is tuned and where a worker reads it.
        locations: as in `Spec`; empty where a worker reads it.
    """

    name: str
    params: tuple[tuple[str, Scalar], ...]
    target: Target
    entry: str
    args: Args
    static: dict[str, Value]
    reference: str | None
    tolerance: Tolerance | None
    budget: Budget
    files: tuple[str, ...]
    location: Location
    base_dir: str
    mesh: Mesh = ()
    env: tuple[str, ...] = ()
    check: Check | None = None
    vmap: str | None = None
    tuning: Tuning | None = None
    locations: Mapping[str, Location] = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Variant) and _without_places(self) == _without_places(other)

    def where(self, path: str) -> Location:
        """Return the place of a field, `static.tile`, or of the nearest thing around it."""
        while path and path not in self.locations:
            path = path.rpartition(".")[0]
        return self.locations[path] if path else self.location

    @property
    def id(self) -> str:
        """Return `matmul[m=1024,n=4096]@h100-sxm`, its name for people."""
        return variant_id(self.name, self.params, self.target.name)

    def for_check(self) -> Variant:
        """Return the variant that is checked in the place of this one: it has no budget."""
        if self.check is None:
            return self
        own = self.check
        return replace(
            self,
            params=own.params,
            args=own.args,
            static=own.static,
            mesh=own.mesh,
            tolerance=own.tolerance,
            budget=Budget(),
            check=None,
        )

    def request(self) -> dict[str, object]:
        """Return all that decides the compilation as plain data, mappings sorted by key.

        The kernel's name, its place, the folder, reference, tolerance, budget, check, vmap and
        tuning are not in it.
        """
        return {
            "args": plain_args(self.args),
            "entry": self.entry,
            "files": sorted(self.files),
            "static": sorted_value(self.static),
            "target": dict(sorted(self.target.figures().items())),
            **({"mesh": [list(axis) for axis in self.mesh]} if self.mesh else {}),
            **({"env": list(self.env)} if self.env else {}),
        }

    def arrays(self) -> Iterator[tuple[str, ArraySpec]]:
        """Yield every array with its path, `a` or `cache.0`, in the order of the spec."""
        yield from _leaves(self.args, ())


def _without_places(item: Spec | Variant) -> dict[str, object]:
    return {**asdict(item), "locations": None}


def plain_args(tree: Args | ArgTree, *, in_order: bool = False) -> Value:
    """Return arguments as plain data: arrays in their notation, mappings sorted by key.

    With `in_order` mappings keep their order.
    """
    if isinstance(tree, ArraySpec):
        return str(tree)
    if isinstance(tree, list):
        return [plain_args(item, in_order=in_order) for item in tree]
    if isinstance(tree, dict):
        keys = tree if in_order else sorted(tree)
        return {key: plain_args(tree[key], in_order=in_order) for key in keys}
    return tree


def sorted_value(value: Value) -> Value:
    """Return JSON-like data with every mapping sorted by key."""
    if isinstance(value, list):
        return [sorted_value(item) for item in value]
    if isinstance(value, dict):
        return {key: sorted_value(value[key]) for key in sorted(value)}
    return value


def _leaves(tree: Args | ArgTree, path: tuple[str, ...]) -> Iterator[tuple[str, ArraySpec]]:
    if isinstance(tree, ArraySpec):
        yield ".".join(path), tree
    elif isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from _leaves(item, (*path, str(index)))
    elif isinstance(tree, dict):
        if "$tuple" in tree:
            yield from _leaves(tree["$tuple"], path)
        else:
            for key, item in tree.items():
                yield from _leaves(item, (*path, key))


def check_devices(sizes: Mapping[str, int]) -> None:
    """Check how many devices a mesh has.

    Raises:
        SpecError: too few for a mesh, or too many.
    """
    devices = math.prod(sizes.values())
    if not 2 <= devices <= MOST_DEVICES:
        raise SpecError(
            f"a mesh of {devices} devices.",
            hint=f"Give it 2 to {MOST_DEVICES}; for one device leave it out.",
        )


def checked_mesh(mesh: Mapping[str, int] | None) -> Mesh:
    """Return the mesh of these axes.

    Raises:
        SpecError: an axis has no name or no size, or the devices are too many.
    """
    if not mesh:
        return ()
    for name, size in mesh.items():
        if type(name) is not str or not name.isidentifier() or type(size) is not int or size < 1:
            raise SpecError(
                f"mesh: axis {show(name)} has size {show(size)}.", hint='Write mesh={"x": 4}.'
            )
    check_devices(mesh)
    return tuple(mesh.items())
