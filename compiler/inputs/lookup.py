"""Look variants up in the store without importing kernel code.

The request key leads to a manifest, and the manifest to a record.

A request key is computed from the spec and the toolchain without importing anything, so a hit does
not load JAX. Parts that many variants share are computed once per build: the toolchain's key, and
all fields of a kernel except its arguments.

A request has up to `MAX_SETS` manifests, one for each set of sources (files with their contents)
that it was compiled from, so switching between Git branches compiles nothing again. A manifest is a
hit if none of its sources has changed. Variants that read the same sources share one check of these
sources per build. After a hit, the manifest with the same sources is tried first for the next
variant of the same folders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pallasc.cache.format import ARTIFACTS, MANIFESTS
from pallasc.cache.manifests import ANOTHER_RECORD, NOT_SIGNED, Manifest, set_name
from pallasc.cache.stat_digest import FileDigests
from pallasc.cache.store import Store
from pallasc.compiler.inputs.sources import CurrentSources, SourceChange
from pallasc.compiler.toolchain.identity import PROGRAMS, own_digest
from pallasc.compiler.toolchain.modules import Place
from pallasc.compiler.toolchain.setup import Context, declared_fields
from pallasc.errors import CorruptError, PallascError
from pallasc.specs.arrays import ArraySpec
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.canonical import KEY_SCHEMA, canonical_text, digest, labelled, labelled_key
from pallasc.specs.spec import Variant, plain_args
from pallasc.specs.user_files import Entry, parse_entry

if TYPE_CHECKING:
    from pallasc.specs.spec import Program

# ---- request keys

MANIFEST_SCHEMA = 4
"""The schema of the manifests that request keys lead to: see `manifest`."""

_PLAIN = (str, int, float, type(None), ArraySpec)


def request_fields(variant: Variant, context: Context) -> dict[str, str]:
    """Return the labeled fields of a request key, as text.

    Raises:
        ToolError: a declared data file cannot be read.
    """
    shared = _shared_fields(variant, context.digests)
    return _own_fields(variant) | shared | _toolchain_fields(context)


def data_digests(variant: Variant, digests: FileDigests) -> dict[str, str]:
    """Return the digests of the data files that a variant declares.

    Raises:
        ToolError: a data file cannot be read.
    """
    return {name: digests.digest(Path(variant.base_dir) / name) for name in variant.files}


def place_of(variant: Variant) -> Place:
    """Return the folders in which a compilation searches for modules and files."""
    base = Path(variant.base_dir)
    folders = (
        str((base / entry.source).resolve().parent) if entry.is_file else variant.base_dir
        for entry in named_entries(variant)
    )
    return Place(variant.base_dir, tuple(dict.fromkeys(folders)))


def named_entries(variant: Variant) -> list[Entry]:
    """Return the entry points that a compilation imports, including those in `$call` and `$ref`."""
    return [parse_entry(entry) for entry in _names_of_entries(variant)]


def _own_fields(variant: Variant) -> dict[str, str]:
    """Return the fields that differ between variants of a kernel, sorted."""
    return {
        "args": canonical_text(plain_args(variant.args)),
        "static": canonical_text(variant.static),
    }


def _split(fields: Mapping[str, str]) -> tuple[bytes, bytes, bytes]:
    """Return the start of a key, up to `args`; the lines up to `static`; and the rest."""
    lines = [(label, labelled(label, fields[label])) for label in sorted(fields)]
    first = [line for label, line in lines if label < "args"]
    middle = [line for label, line in lines if "args" < label < "static"]
    last = [line for label, line in lines if label > "static"]
    return KEY_SCHEMA + b"".join(first), b"".join(middle), b"".join(last)


def _shared_fields(variant: Variant, digests: FileDigests) -> dict[str, str]:
    """Return the fields that the variants of a kernel for one target share."""
    data = data_digests(variant, digests)
    return {
        "manifest": str(MANIFEST_SCHEMA),
        "entry": canonical_text(variant.entry),
        "files": canonical_text(sorted(variant.files)),
        "target": canonical_text(variant.target.figures()),
        "architecture": canonical_text(variant.target.facts()),
        "target name": variant.target.name,
        **({"mesh": canonical_text(variant.mesh)} if variant.mesh else {}),
        **(_program_fields(variant.program, digests) if variant.program else {}),
        **{f"data {name}": value for name, value in data.items()},
        **(declared_fields(variant.env) if variant.env else {}),
    }


def _program_fields(program: Program, digests: FileDigests) -> dict[str, str]:
    code = own_digest(digests.digest, PROGRAMS)
    return {"program": canonical_text(program.request()), "program code": code}


def _toolchain_fields(context: Context) -> dict[str, str]:
    return {
        **{f"tool {label}": value for label, value in context.identity.items()},
        **{f"variable {name}": value for name, value in context.variables.items()},
    }


def _names_of_entries(variant: Variant) -> list[str]:
    """Return the entry points that a compilation imports, as the spec writes them."""
    args = variant.args if isinstance(variant.args, list) else variant.args.values()
    values = (*variant.static.values(), *args)
    nested = [value for value in values if not isinstance(value, _PLAIN)]
    return [variant.entry, *_entries_in(nested)] if nested else [variant.entry]


def _entries_in(value: object) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _entries_in(item)
    elif isinstance(value, Mapping):
        yield from (value[key] for key in ("$call", "$ref") if key in value)
        yield from _entries_in([*value.values()])


# ---- look-up

_RECORD_GONE = "the store no longer has its record"
_NO_ACTION = "its manifest in the store was damaged"
_NEVER = "never compiled with this spec and toolchain"


class Hit(Struct, frozen=True):
    """A variant that is in the store.

    Attributes:
        key: its request key.
        artifact: its artifact, with all blobs verified.
        manifest_key: key of the manifest that led to the artifact.
        manifest: that manifest; it names the artifact's action key.
    """

    key: str
    artifact: Artifact
    manifest_key: str
    manifest: Manifest


class Miss(Struct):
    """A variant that is not in the store; in a build, all variants with its key and place.

    Equal specs in two folders have the same key, but may read other files.

    Attributes:
        variant: the first of these variants; only this one is compiled.
        key: its request key.
        place: folders in which its modules and files are searched for.
        why: reason of the miss, unless a source has changed.
        changes: the changed sources that caused the miss, from the manifest with the fewest changes
            if the key has several manifests.
        untrusted: whether the store has only entries without a trusted signature.
        error: error of the look-up, with which the variant fails; None if it can be compiled.
        indices: positions of these variants in the build.
        explanation: sentences on the changes, with the option `explain`.
    """

    variant: Variant
    key: str
    place: Place
    why: str = ""
    changes: tuple[SourceChange, ...] = ()
    untrusted: bool = False
    error: PallascError | None = None
    indices: list[int] = field(default_factory=list)
    explanation: tuple[str, ...] = ()

    @property
    def is_new(self) -> bool:
        """True if the store has no entry of the key."""
        return self.why == _NEVER

    @property
    def reason(self) -> str:
        """The reason in words."""
        if self.explanation:
            return self.explanation[0]
        return self.changes[0].sentence if self.changes else self.why


class Lookup:
    """Computes the request keys of one build's variants, and looks the variants up.

    Args:
        context: the toolchain's identity and the digests of files.
        store: the store.
    """

    def __init__(self, context: Context, store: Store) -> None:
        self.context = context
        self.store = store
        self._toolchain = labelled_key(_toolchain_fields(context))
        self._shared: dict[tuple[object, ...], tuple[bytes, bytes, bytes]] = {}
        """The lines of keys that the variants of a kernel share, split where the others go."""
        self._places: dict[tuple[str, ...], Place] = {}
        self._changes: dict[tuple[str, Place], tuple[SourceChange, ...]] = {}
        self._fitting: dict[Place, str] = {}
        """Digest of the set of sources of the last hit (`Manifest.read`), by place."""

    def key(self, variant: Variant) -> str:
        """Return the request key of a variant.

        Raises:
            ToolError: a declared data file cannot be read.
        """
        kernel = (
            variant.entry, variant.base_dir, variant.files, variant.env, variant.mesh,
            variant.target, variant.program and id(variant.program),
        )  # fmt: skip
        shared = self._shared.get(kernel)
        if shared is None:
            fields = _shared_fields(variant, self.context.digests)
            shared = self._shared[kernel] = _split({**fields, "toolchain": self._toolchain})
        args, static = (labelled(*field) for field in _own_fields(variant).items())
        return digest(b"".join((shared[0], args, shared[1], static, shared[2])))

    def place(self, variant: Variant) -> Place:
        """Return `place_of` a variant."""
        entries = (variant.base_dir, *_names_of_entries(variant))
        if entries not in self._places:
            self._places[entries] = place_of(variant)
        return self._places[entries]

    def find(self, variant: Variant) -> Hit | Miss:
        """Look a variant up; the miss is the one with the fewest changed sources.

        Raises:
            ToolError: a declared data file, or a file of a package, cannot be read.
        """
        key, place = self.key(variant), self.place(variant)
        miss, misses = partial(Miss, variant, key, place), []
        for name, manifest in self._candidates(key, place):
            found = self._follow(name, manifest, place, miss)
            if not isinstance(found, Miss):
                self._fitting[place] = manifest.read
                return Hit(key, found, name, manifest)
            misses.append(found)
        return min(misses, key=lambda m: (m.untrusted, len(m.changes)), default=miss(_NEVER))

    def _candidates(self, key: str, place: Place) -> Iterator[tuple[str, Manifest]]:
        """Yield the manifests of a request, the most promising first, then the newest."""
        read = self._fitting.get(place)
        if read is not None:
            name = set_name(key, read)
            manifest = self.store.find_manifest(name)
            if manifest is not None and manifest.read == read:
                yield name, manifest
        yield from self.store.sets(key)

    def _follow(
        self, name: str, manifest: Manifest, place: Place, miss: Callable[..., Miss]
    ) -> Artifact | Miss:
        """Return the artifact that a manifest leads to, or the reason why it leads to none."""
        if not self.store.believes(name, manifest):
            return miss(NOT_SIGNED, untrusted=True)
        if not manifest.action:
            return miss(_NO_ACTION)  # compiling replaces the manifest
        if changes := self.changes(manifest, place):
            return miss(changes=changes)
        record = manifest.record if self.store.trust.required else None
        artifact = stored_artifact(self.store, manifest.action, record=record)
        if artifact is not None:
            return artifact
        if record is not None and self.store.get_artifact(manifest.action):
            return miss(ANOTHER_RECORD, untrusted=True)
        return miss(_RECORD_GONE)

    def trusted_records(self, key: str) -> dict[str, str] | None:
        """Return the digests of records that trusted keys signed, by action key; None allows all.

        All manifests of the request key count, even if their sources have changed since.
        """
        return self.store.signed_records(key) if self.store.trust.required else None

    def fits(self, name: str, manifest: Manifest, miss: Miss) -> bool:
        """Return True if another store's manifest is valid here: trusted, and no source changed."""
        return (
            name == set_name(miss.key, manifest.read)
            and self.store.believes(name, manifest)
            and not self.changes(manifest, miss.place)
        )

    def changes_since(self, variant: Variant, action_key: str) -> tuple[SourceChange, ...]:
        """Return the sources that changed since a variant had an action key, () if unknown."""
        changes = [
            self.changes(manifest, self.place(variant))
            for name, manifest in self.store.sets(self.key(variant))
            if manifest.action == action_key and self.store.believes(name, manifest)
        ]
        return min(changes, key=len, default=())

    def changes(self, manifest: Manifest, place: Place) -> tuple[SourceChange, ...]:
        """Return the sources of a manifest that have changed."""
        sources = (manifest.read, place)
        if sources not in self._changes:
            current = CurrentSources(place, self.context.digests, self.context.unchecked)
            self._changes[sources] = tuple(current.changes(manifest))
        return self._changes[sources]


def stored_artifact(store: Store, action_key: str, *, record: str | None) -> Artifact | None:
    """Return the artifact under an action key with all blobs verified, or None.

    Only its kernels, sizes, and digest stay in memory. The record and the blobs are read and
    verified again on demand, so a build of ten thousand variants needs little memory. A record that
    does not describe an artifact is quarantined.

    Args:
        store: the store.
        action_key: key of the artifact.
        record: required digest of the record. None accepts any record and must not be used for
            stores that require signatures.
    """
    stored = store.get_artifact(action_key, verify=True)
    if stored is None or record not in (None, stored.digest):
        return None
    try:
        # If the store loses a blob, it reads as b"", which never matches its digest.
        reread = partial(_reread_record, store, action_key, stored.digest)
        return Artifact(stored.record.artifact, lambda key: store.get_blob(key) or b"", reread)
    except PallascError as error:
        store.put_away(ARTIFACTS, action_key, error.message, None)
        return None


def _reread_record(store: Store, action_key: str, digest: str) -> Mapping[str, Any]:
    stored = store.get_artifact(action_key)
    if stored is None or stored.digest != digest:
        raise CorruptError(f"the store no longer has the record of action key {action_key}")
    return stored.artifact


def artifact_of_action(store: Store, action_key: str) -> Artifact | None:
    """Return the artifact under an action key without a request; see `stored_artifact`.

    If signatures are required, a trusted manifest must name its record. All manifests of the store
    are read to find it.
    """
    if not store.trust.required:
        return stored_artifact(store, action_key, record=None)
    manifests = (store.get_manifest(key) for key in store.names(MANIFESTS))
    records = {m.record for m in manifests if m is not None and m.action == action_key}
    artifacts = (stored_artifact(store, action_key, record=record) for record in sorted(records))
    return next(filter(None, artifacts), None)
