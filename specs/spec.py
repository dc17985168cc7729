"""The central records: a spec as declared by its author, a variant to compile, and a machine.

To pass between processes of one version, specs are converted to plain JSON, and variants are
pickled. Mappings keep their order in the JSON, so do not sort the keys of the text. This form is
never stored.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, force_setattr, replace

from pallasc.errors import Location, SpecError
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.canonical import Scalar, Value, canonical_json, digest, variant_id
from pallasc.specs.gpus import DEFAULT_MODELS, MODELS, Target, resolve_target
from pallasc.specs.spelling import show
from pallasc.specs.user_files import read_regular

if TYPE_CHECKING:
    from pallasc.specs.fields import Place
    from pallasc.specs.tuning import Tune, Tuning

    ArgTree = ArraySpec | Scalar | list["ArgTree"] | dict[str, "ArgTree"]
    """An argument: an array, `null`, or lists and mappings of them.

    A mapping with `$tuple` is a tuple. A mapping with `$call` is the pytree node that the call
    returns; only its arguments may contain scalars other than `null`.
    """

    Args = dict[str, ArgTree] | list[ArgTree]
    """All arguments: by name, or by position."""
else:
    ArgTree = Args = Any  # for msgspec, which has no recursive types
    Place = Tune = Tuning = Any  # most specs need none of these modules

MOST_DEVICES = 256
"""Maximum number of devices in a mesh."""

Mesh = tuple[tuple[str, int], ...]
"""Names and sizes of the axes; empty for one device."""


class Tolerance(Struct, frozen=True):
    """Allowed difference between a kernel and its reference: `|a - b| <= atol + rtol * |b|`."""

    rtol: int | float | None = None
    atol: int | float | None = None


Budget = dict[str, int | str]
"""Limits of fields of `Resources`: numbers, or rules relative to a baseline.

Rules are text, normalized by `parse_rule`: `+8`, `+10 %`, `<= baseline`.
"""

_LARGEST_BYTES = 1 << 20


class Machine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine with GPUs: all of its properties that JAX's compilation keys depend on.

    `pallasc machine` writes it as JSON, schema 1. It has no host names, and no paths except those
    that the user has set in flags and variables.

    Attributes:
        jax, jaxlib, plugin: versions of JAX's packages.
        platform_version: the plugin's text for keys, such as `cuda 13020`.
        driver, gpu, gpus, capability, memory_bytes, cpu: for people; `topology` has them too.
        compression, compression_in_key: JAX's compression of cache entries, and its name in keys.
        flags: the XLA flags that affect keys, sorted.
        settings: the `JAX_*` variables that affect keys.
        fingerprint: digest of the topology, as used in keys.
        topology: JAX's serialized topology, base64 in JSON.
    """

    schema: Literal[1] = 1
    jax: str
    jaxlib: str
    plugin: str
    platform_version: str
    driver: str
    gpu: str
    gpus: int
    capability: str
    memory_bytes: int
    cpu: str
    compression: Literal["zstd", "zlib"]
    compression_in_key: Literal["zstandard", "zlib"]
    flags: tuple[str, ...] = ()
    settings: dict[str, str] = field(default_factory=dict)
    fingerprint: str
    topology: bytes

    def to_json(self) -> bytes:
        """Return the file's content."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical content."""
        return digest(canonical_json(msgspec.to_builtins(self)))

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables that give a local process this machine's flags and settings."""
        return {**self.settings, **({"XLA_FLAGS": " ".join(self.flags)} if self.flags else {})}

    def target(self, name: str) -> Target:
        """Return the model of the GPU with `name` as its name.

        Raises:
            SpecError: pallasc does not compile for this GPU.
        """
        known = (model for model in MODELS.values() if model.description == self.gpu)
        arch = "sm_" + self.capability.replace(".", "")
        archs = (name for name in DEFAULT_MODELS if name.rstrip("a") == arch)
        model = next(known, None) or resolve_target(next(archs, arch))
        return replace(model, name=name)


Axes = str | tuple[str, ...] | None
"""The axes of a mesh that divide one dimension of an array."""


class Program(Struct, frozen=True):
    """The fields of a variant that is a program: a whole function that XLA compiles.

    Attributes:
        machine: the machine.
        donate: names of the arguments whose memory the program may reuse.
        shardings: the axes that divide each dimension, by the path of an argument.
        explicit: axes of the mesh whose shardings are part of the types of arrays.
        only_lower: True to find the key of the program without compiling it.
        tuned: recorded autotuning results of XLA; empty for XLA's default algorithms.
    """

    machine: Machine
    donate: tuple[str, ...] = ()
    shardings: dict[str, tuple[Axes, ...]] = field(default_factory=dict)
    explicit: tuple[str, ...] = ()
    only_lower: bool = False
    tuned: bytes = b""

    def request(self) -> dict[str, object]:
        """Return everything that affects compilation as plain data."""
        own: dict[str, object] = msgspec.to_builtins(self)
        return {**own, "machine": self.machine.digest, "tuned": digest(self.tuned)}


class Spec(Struct, frozen=True, eq=False):
    """A kernel as declared by its author; its templates are checked but not filled in.

    Attributes:
        name: the kernel.
        entry: `package.module:function`, or `file.py:function` relative to `base_dir`.
        args: arrays in their notation, by name or by position.
        static: static keyword arguments, which may contain `$call` and `$ref` nodes.
        matrix: values of each parameter.
        rows: values of further parameters, from a file; each row is combined with the matrix.
        table: the file that the rows come from, relative to `base_dir`.
        include: additional points, each complete.
        exclude: partial points; the points they match are dropped.
        tune: the parameters that change only the speed; None if nothing is tuned.
        targets: names of targets.
        models: models that the spec file adds.
        reference: entry point of the reference function, which gives the correct result.
        tolerance: `rtol` and `atol`, numbers or templates.
        budget: limits by name, numbers or templates.
        files: data files that the kernel reads while it is traced, relative to `base_dir`.
        env: names of environment variables that the kernel can see.
        mesh: axes of the devices that run the kernel together; sizes are numbers or templates.
        check: values that replace those of a point in `pallasc check`, plus `$args` and `$seed`.
        vmap: kernel that does the same for a batch, for `jax.vmap`; None if there is none.
        programs: the program for each machine, by its name; empty for a kernel.
        machines: files of the machines, relative to `base_dir`.
        location: position of the declaration.
        base_dir: absolute folder of the spec file; not part of any key.
        places: place of each field in a YAML file, by name; empty for Python specs, and in workers.
    """

    name: str
    entry: str
    args: dict[str, Value] | list[Value]
    location: Location
    base_dir: str
    static: dict[str, Value] = field(default_factory=dict)
    matrix: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    rows: tuple[dict[str, Value], ...] = ()
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
    programs: dict[str, Program] = field(default_factory=dict)
    machines: tuple[str, ...] = ()
    places: Mapping[str, Place] = field(default_factory=dict)

    @property
    def axes(self) -> dict[str, tuple[Value, ...]]:
        """Return the values of each matrix parameter, then of each tuned parameter."""
        return self.matrix if self.tune is None else {**self.matrix, **self.tune.over}

    def where(self, *path: str | int) -> Location:
        """Return the position of a field, or of its nearest ancestor that has one."""
        return _position(self, path)


class Variant(Struct, frozen=True, eq=False):
    """One point of a spec's matrix on one target, with everything filled in.

    Attributes:
        name: the kernel.
        params: parameters of this point with the labels of their values (see `canonical`), in
            matrix order.
        target: the model it is compiled for.
        entry: as in `Spec`.
        args: the arrays; a mapping is passed by name, a list by position.
        static: static keyword arguments, `$call` and `$ref` nodes kept, keys sorted.
        reference: as in `Spec`.
        tolerance: allowed difference of results, None if the spec has none.
        budget: resource limits.
        files: as in `Spec`, sorted.
        location: position of the kernel's declaration.
        base_dir: as in `Spec`.
        mesh: axes and sizes of the devices that run it together; empty for one device.
        env: as in `Spec`, sorted.
        check: the variant that `pallasc check` runs instead, with the spec's small sizes and no
            budget; None to check this variant.
        seed: seed of the inputs of a check, None if the spec has none.
        names_args: True if the spec gives arguments for the check, so `params` do not identify it.
        vmap: as in `Spec`.
        program: the fields of a program; None for a kernel.
        tuning: tuning data from a table; None if nothing is tuned, and in workers.
        places: as in `Spec`.
        id: name for people, `matmul[m=1024,n=4096]@h100-sxm`; computed from the other fields.
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
    check: Variant | None = None
    seed: int | None = None
    names_args: bool = False
    vmap: str | None = None
    program: Program | None = None
    tuning: Tuning | None = None
    places: Mapping[str, Place] = field(default_factory=dict)
    id: str = ""

    def __post_init__(self) -> None:
        force_setattr(self, "id", variant_id(self.name, self.params, self.target.name))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the variant without places, which refer to a file in this process's memory."""
        return partial(type(self), **{**asdict(self), "places": {}}), ()

    def where(self, path: str) -> Location:
        """Return the position of a field such as `static.tile`, or of its nearest ancestor."""
        parts = path.split(".")
        return _position(self, tuple(int(p) if p.isdecimal() else p for p in parts))

    def for_check(self) -> Variant:
        """Return the variant to check instead of this one."""
        return self.check or self

    def request(self) -> dict[str, object]:
        """Return everything that affects compilation as plain data, mappings sorted by key.

        Excluded are the kernel's name and location, the folder, reference, tolerance, budget,
        check, vmap, and tuning.
        """
        return {
            "args": plain_args(self.args),
            "entry": self.entry,
            "files": sorted(self.files),
            "static": plain_args(self.static),
            "target": dict(sorted(self.target.figures().items())),
            **({"mesh": [list(axis) for axis in self.mesh]} if self.mesh else {}),
            **({"env": list(self.env)} if self.env else {}),
            **({"program": self.program.request()} if self.program else {}),
        }

    def arrays(self) -> Iterator[tuple[str, ArraySpec]]:
        """Yield each array with its path, `a` or `cache.0`, in the order of the spec."""
        yield from _leaves(self.args, ())


def _position(item: Spec | Variant, path: tuple[str | int, ...]) -> Location:
    place = item.places.get(str(path[0])) if path else None
    return item.location if place is None else place.below(path[1:]).location


def read_machine(path: str | Path) -> Machine:
    """Return the machine that a file describes.

    Raises:
        SpecError: the file cannot be read, has another schema, or does not describe a machine.
    """
    hint = "Write one where the GPU is: pallasc machine > machine.json"
    try:
        content = read_regular(str(path), most_bytes=_LARGEST_BYTES)
        schema = msgspec.json.decode(content, type=dict[str, Any]).get("schema")
        if schema != 1:
            own = f"has schema {show(schema)}, and this pallasc reads schema 1"
            raise SpecError(f"{path} {own}.", hint=f"{hint}, with the same pallasc as here.")
        return msgspec.json.decode(content, type=Machine)
    except SpecError as error:
        error.hint = error.hint or hint
        raise
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is not a machine file: {error}.", hint=hint) from error


class Choice(NamedTuple):
    """One possible value of a parameter.

    Attributes:
        label: name for people.
        content: the value that templates see.
        key: equal for equal values of equal type and name.
    """

    label: Scalar
    content: Value
    key: str


Point = dict[str, Choice]
"""One choice for each parameter."""


def plain_args(tree: Any) -> Any:
    """Return arguments as plain data: arrays in their notation, mappings sorted by key."""
    if isinstance(tree, ArraySpec):
        return str(tree)
    if isinstance(tree, list):
        return [plain_args(item) for item in tree]
    if isinstance(tree, dict):
        return {key: plain_args(tree[key]) for key in sorted(tree)}
    return tree


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
    """Check the number of devices in a mesh.

    Raises:
        SpecError: there are too few or too many devices.
    """
    devices = math.prod(sizes.values())
    if not 2 <= devices <= MOST_DEVICES:
        raise SpecError(
            f"a mesh of {devices} devices.",
            hint=f"Give it 2 to {MOST_DEVICES}; for one device leave it out.",
        )


def checked_mesh(mesh: Mapping[str, int] | None) -> Mesh:
    """Return the mesh with these axes.

    Raises:
        SpecError: an axis has no name or no size, or the number of devices is out of range.
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


def spec_to_json(spec: Spec) -> dict[str, object]:
    """Return a spec as plain data."""
    data: dict[str, object] = msgspec.to_builtins(replace(spec, places={}))
    return data


def spec_from_json(data: Mapping[str, Any]) -> Spec:
    """Return the spec that was passed to `spec_to_json`.

    Raises:
        ValueError: the data is malformed.
    """
    spec = msgspec.convert(data, Spec)
    if spec.tune is None:
        return spec
    from pallasc.specs.tuning import Tune

    return replace(spec, tune=msgspec.convert(spec.tune, Tune))
