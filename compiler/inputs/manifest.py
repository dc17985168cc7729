"""Manifests of compilations: stored under a request key, so that a hit does not need JAX.

As in ccache's direct mode, a manifest lists the files and packages that a compilation of a request
read, with their digests, and the resulting action key. If all digests match, the record under that
action key is a hit (`lookup`). For each request key, the store keeps the manifests of the last
`cache/manifests.MAX_SETS` sets of sources, each named by the request key and `read`. So branches
and folders that share a store do not replace each other's manifests.

The sources of a compilation are the files of the modules that an entry point reaches (`closure`),
and everything that these modules read. Installed packages count as a whole. Missing modules also
count: a module whose import failed may be installed later, a package without `__init__.py` may get
one, and a new file in the spec's folder may shadow a module of Python or of a package.

Manifest, schema 4:

* `action`: the action key, `record`: the digest of the record under it
* `files`: label -> digest, `packages`: name -> digest
* `opened`: label -> digest of each other path that was read or queried, with labels as in
  `sources`; null if the path does not exist
* `missed`: environment variable, or file in the user's home, that was requested but is hidden from
  kernels -> `file:line` of the request; the build warns if it exists
* `absent`: modules whose import failed; `hidden`: Python modules that files shadow
* `read`: digest of `files`, `packages`, `opened`, `missed`, `absent`, and `hidden`; equal for
  variants that read the same sources
* `about`: name, target, and parameters of the variant that was compiled last, and its compile time
  in seconds
* `name`, `variant`: kernel and id of that variant
* `printed`: output of tracing (`kernel_output`), `diagnostics`: warnings (`diagnostics`); omitted
  if empty
* `versions`: label -> version of each part of the toolchain, for messages (`components`)
* `request`: the labeled fields of the request key as JSON text, parsed only to explain a miss; long
  values are replaced by `sha256:` digests

`toolchains`, in a manifest under a fixed key, lists the toolchains that filled the store, newest
first, for machines without a compiler. Every key contains the toolchain's identity, even if nothing
is compiled. Without an installed compiler, a build uses the newest of these toolchains that has the
installed Python and pallasc, preferably the lock file's. The rest of the toolchain cannot be
checked, and the build prints a note.

`cache/manifests` declares the fields, checks them, and signs manifests.

Schema 3 was the same, with one manifest per request key and one per folder. Schema 2 had
`variables` (digests of environment variables) and `current_folder`, because workers then inherited
the environment of the build. Schema 1 had no `read`, and its request key covered each field of the
toolchain separately.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert, structs, to_builtins

from pallasc.cache.format import MANIFESTS
from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests, file_holding
from pallasc.cache.store import Store
from pallasc.compiler.inputs import recorders, sources
from pallasc.compiler.inputs.lookup import MANIFEST_SCHEMA, Lookup, Miss, request_fields
from pallasc.compiler.inputs.recorders import LIBRARY, ModuleRecord
from pallasc.compiler.inputs.sources import FILE, IS, LINK, label_of, name_of
from pallasc.compiler.toolchain import modules
from pallasc.compiler.toolchain.identity import (
    JAX,
    TOOL,
    components,
    components_in,
    own_digest,
    package_digest,
    python_name,
    versions_text,
)
from pallasc.compiler.toolchain.modules import COVERED, is_installed, is_standard, namespace_of
from pallasc.compiler.toolchain.setup import Context, Setup, key_variables, prepare, settled
from pallasc.compiler.toolchain.toolchain import is_compiler_installed
from pallasc.errors import NotCachedError, ToolError
from pallasc.specs.canonical import canonical_json, canonical_text, digest, labelled_key
from pallasc.specs.loading.lock import VARIABLE, Lock, differences, differing
from pallasc.specs.user_files import module_name
from pallasc.version import installed_version

_LONGEST_FIELD = 400
_READ = ("file:", "site:")
"""Prefixes of labels in `opened` whose contents were read."""
_EVERYWHERE = ("/dev/", "/etc/", "/proc/", "/sys/", "/usr/", "/bin/", "/lib")
_DIFFERENT = "different"
_KEY = labelled_key({"toolchains": "1"})
_MOST = 16

# ---- the sources of a compilation


@dataclass(slots=True)
class Sources:
    """The inputs of a compilation.

    Attributes:
        files: source files by label: `module:<name>` if Python finds the file by that name, else
            `file:<path relative to the spec's folder>`; `Place.locate` maps labels to paths.
        packages: names of installed packages; dotted if in a shared namespace.
        unknown: modules without a file, which have no digest.
        absent: modules whose import failed.
        folders: folders that were searched for modules first.
        hidden: modules of Python that a file shadows; None if that was not checked.
        opened: other files and folders that were read, by the labels of `sources`.
        missed: environment variables, and files in the user's home (`~/…`), that were requested but
            are hidden from kernels, with the `file:line` of the request.
        unseen: descriptions of actions that have no digest.
        altered: labels of inputs that changed while the compilation ran.
    """

    files: dict[str, Path] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    folders: tuple[str, ...] = ()
    hidden: list[str] | None = None
    opened: dict[str, Path] = field(default_factory=dict)
    missed: dict[str, str] = field(default_factory=dict)
    unseen: set[str] = field(default_factory=set)
    altered: set[str] = field(default_factory=set)

    def changed_since(self, start_ns: int) -> list[str]:
        """Return the labels of inputs that were changed or removed after `start_ns`."""
        read = {
            x: path for x, path in self.opened.items() if x.startswith(_READ) and path.is_file()
        }
        touched = [x for x, path in {**self.files, **read}.items() if _touched_ns(path) >= start_ns]
        return touched + sorted(self.altered)


def _touched_ns(path: Path) -> int:
    """Return the time of a file's last change, `sys.maxsize` if unknown."""
    try:
        status = os.stat(file_holding(str(path)))
    except (OSError, ValueError):
        return sys.maxsize
    return max(status.st_mtime_ns, status.st_ctime_ns)


def closure(entries: Iterable[str]) -> set[str]:
    """Return the names of the loaded modules that `entries` reach, including themselves."""
    reached: set[str] = set()
    pending = list(entries)
    while pending:
        name = pending.pop()
        module = _module(name)
        if name in reached or module is None:
            continue
        reached.add(name)
        parent = name.rpartition(".")[0]
        # A module may be registered under a name other than its `__name__`.
        pending += filter(None, (parent, modules.module_of(namespace_of(module))))
        record = recorders.records.get(name)
        if record and not is_standard(name) and name.partition(".")[0] not in COVERED:
            pending += record.imports
    return reached


def find_sources(
    entries: Iterable[str],
    base_dir: str,
    *,
    folders: Sequence[str] = (),
    entry_files: Iterable[str] = (),
) -> Sources:
    """Return the source files and installed packages that the modules of entry points reach.

    Args:
        entries: names of the modules.
        base_dir: the spec's folder.
        folders: folders searched for modules first; the spec's folder by default.
        entry_files: paths, relative to `base_dir`, of the entry points that are files.
    """
    folders = tuple(folders or (base_dir,))
    reached = sorted(closure(entries))
    found = Sources(folders=folders, hidden=modules.hidden(folders))
    found.files = {f"file:{file}": Path(base_dir, file) for file in entry_files}
    for name in filter(counts, reached):
        _add_module(found, name, base_dir)
    missing = {*filter(_is_namespace, reached)}
    for name in reached:
        if name in recorders.records and not is_installed(_file(_module(name))):
            missing |= recorders.records[name].failed
    found.absent = {name for name in missing if modules.locate_module(name, folders) is None}
    _add_reads(found, _combined(reached), base_dir)
    return found


def counts(name: str) -> bool:
    """Return True for a source: not Python's, the toolchain's, or an entry point that is a file."""
    top = name.partition(".")[0]
    if is_standard(name) or top in COVERED or name.startswith(module_name("")):
        return False
    return top != "pallasc" or name.startswith(LIBRARY)


def _add_module(found: Sources, name: str, base_dir: str) -> None:
    file = _file(_module(name))
    if not file:
        owner = next((above for above in _parents(name) if _file(_module(above))), "")
        if owner and is_installed(_file(_module(owner))):  # the owner created the module
            found.packages.add(_package(owner))
        elif not _is_namespace(name):
            found.unknown.add(name)
    elif is_installed(file) and not name.startswith(LIBRARY):
        found.packages.add(_package(name))
    else:
        path, located = Path(file), modules.locate_module(name, found.folders)
        by_name = located is not None and located.resolve() == path.resolve()
        place = os.path.relpath(path.resolve(), base_dir)
        found.files[f"module:{name}" if by_name else f"file:{place}"] = path


def _module(name: str) -> Any:
    """Return a module, or the object that user code put in its place; None if not loaded."""
    module = sys.modules.get(name)
    return recorders.loaded.get(name) if module is None else module


def _file(module: Any) -> str:
    """Return the file that a module was loaded from, "" if none or if the module hides it."""
    file, spec = namespace_of(module).get("__file__"), namespace_of(module).get("__spec__")
    origin = spec.origin if modules.is_located(spec) else file
    if not isinstance(file, str) or not isinstance(origin, str) or "\0" in file + origin:
        return ""
    if file == origin or (is_installed(file) and is_installed(origin)):
        return file
    return file if os.path.realpath(file) == os.path.realpath(origin) else ""


def _parents(name: str) -> Iterator[str]:
    """Yield the parent packages of a module, innermost first."""
    while name := name.rpartition(".")[0]:
        yield name


def _package(name: str) -> str:
    """Return the outermost package around a module, ignoring namespace packages."""
    outer = [*_parents(name)][::-1]
    return next((p for p in outer if getattr(sys.modules.get(p), "__file__", None)), name)


def _is_namespace(name: str) -> bool:
    """Return True for a namespace package, whose folder may later get an `__init__.py`."""
    namespace = namespace_of(_module(name))
    return namespace.get("__file__") is None and bool(namespace.get("__path__"))


def _combined(names: Iterable[str]) -> ModuleRecord:
    total = ModuleRecord()
    for record in filter(None, map(recorders.records.get, names)):
        # Copy, because another thread of the user's code may add reads.
        for look, seen in record.looks.copy().items():
            if total.looks.setdefault(look, seen) != seen:
                total.looks[look] = _DIFFERENT
        total.missed = {**record.missed, **total.missed}
        total.unseen |= record.unseen
    return total


def _add_reads(found: Sources, read: ModuleRecord, base_dir: str) -> None:
    own = {os.path.realpath(path) for path in found.files.values()}
    covered = COVERED | {name.partition(".")[0] for name in found.packages}
    for (kind, path), seen in sorted(read.looks.items(), key=lambda item: item[0]):
        # An opened folder was walked or passed to fsync, not read.
        label = label_of(IS if (kind, seen) == (FILE, "folder") else kind, path, base_dir)
        if sources.package_in(label) in covered or modules.is_pythons(os.path.join(path, "_")):
            continue
        if kind == LINK and sources.contains_inputs(path, base_dir):
            continue  # such a link would differ after the spec's folder is moved
        real = os.path.realpath(path)
        if kind != LINK and real in own and sources.path_of(label, base_dir) == Path(real):
            continue
        found.opened[label] = Path(path)
        if sources.state(kind, path) != seen:
            found.altered.add(label)
    found.unseen |= read.unseen
    found.missed = _without_folder(read.missed, base_dir)


def missed_of(entries: Sequence[str], base_dir: str, earlier: Iterable[str]) -> dict[str, str]:
    """Return the hidden inputs that a failed compilation requested, with the request's place.

    Returns {} if user code makes this function fail: the compilation's own error matters more.

    Args:
        entries: the modules that the variant names; they and their imports may not be loaded.
        base_dir: the spec's folder.
        earlier: inputs requested before the compilation began.
    """
    try:
        own = _combined({*entries, *closure(entries)}).missed
        late = {n: place for n, place in recorders.missed_so_far().items() if n not in earlier}
        return _without_folder(late | own, base_dir)
    except Exception:  # noqa: BLE001 - the user's code may have changed anything
        return {}


def _without_folder(missed: Mapping[str, str], base_dir: str) -> dict[str, str]:
    """Return `file:line` by name, without the absolute path of the spec's folder."""
    places = {name: place.rpartition(":") for name, place in missed.items()}
    return {
        name: f"{name_of(label_of(FILE, file, base_dir))}{colon}{line}"
        for name, (file, colon, line) in places.items()
    }


# ---- manifests


def make_manifest(action_key: str, read: Sources, digests: FileDigests) -> Manifest:
    """Return the manifest of a compilation that read these sources."""
    digest = digests.digest
    packages = {name: package_digest(name, digest, read.folders) for name in sorted(read.packages)}
    manifest = Manifest(
        files={label: digest(path) for label, path in sorted(read.files.items())},
        packages=packages,
        opened={
            label: sources.digest_of(label, path, digest)
            for label, path in sorted(read.opened.items())
        },
        missed=dict(sorted(read.missed.items())),
        absent=sorted(read.absent),
        hidden=read.hidden,
    )
    return _sealed(manifest, action_key)


def joined(first: Manifest, second: Manifest) -> Manifest | None:
    """Merge the sources of `first` into `second`; return None if they contradict each other."""
    if first.hidden != second.hidden:
        return None
    recorded: dict[str, Any] = {}
    for name in ("files", "packages", "opened"):
        ours, theirs = getattr(first, name), getattr(second, name)
        if any(theirs.get(label, value) != value for label, value in ours.items()):
            return None
        recorded[name] = {**ours, **theirs}
    sources = Manifest(
        **recorded,
        missed={**first.missed, **second.missed},
        absent=sorted({*first.absent, *second.absent}),
        hidden=second.hidden,
    )
    return _sealed(sources, second.action)


def _sealed(sources: Manifest, action: str) -> Manifest:
    """Add the other fields to a manifest of sources, with the digest of the sources."""
    read = digest(canonical_json(sources.to_json()))
    return structs.replace(sources, schema=MANIFEST_SCHEMA, read=read, action=action)


def short_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return labeled fields with long values replaced by their digests."""
    return {
        label: value if len(value) <= _LONGEST_FIELD else f"sha256:{digest(value.encode())}"
        for label, value in fields.items()
    }


def fields_text(fields: Mapping[str, str]) -> str:
    """Return labeled fields as text for a manifest."""
    return canonical_text(short_fields(fields))


def why_not_portable(manifest: Manifest) -> str:
    """Return why an entry is useless on other machines, "" if it can be shared.

    Every machine checks an entry's sources before it uses the entry, so sharing is always safe. But
    an entry that depends on a path of this machine is useless elsewhere, and reveals that path.
    """
    for label in sorted([*manifest.files, *manifest.opened]):
        path = label.partition(":")[2]
        is_common = label.startswith(IS) and path.startswith(_EVERYWHERE)
        if not os.path.isabs(path) or is_common:
            continue
        if label in manifest.files:
            return f"its spec names {name_of(label)} by an absolute path"
        verb = "tests for" if label.startswith(IS) else "reads"
        return f"it {verb} {name_of(label)}, outside the folder of its spec"
    return ""


# ---- toolchains that filled a store


class RememberedToolchain(Struct, frozen=True):
    """A toolchain that is not installed here; used in place of a `Setup`.

    Attributes:
        identity: digests by label.
        versions: versions by label, for messages.
        jax: JAX's versions, which Python specs depend on.
    """

    identity: dict[str, str]
    versions: dict[str, str]
    jax: str

    def __enter__(self) -> RememberedToolchain:
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing, since there is no temporary folder."""

    def context(self, store: Store) -> Context:
        """Return the context for keys."""
        variables = key_variables(settled(os.environ))
        digests = FileDigests(store.root, trust=store.trust)
        return Context(self.identity, variables, digests, lambda: self.versions, unchecked=set())


def remember(store: Store, identity: Mapping[str, str], versions: Mapping[str, str]) -> None:
    """Record in a store the installed toolchain that was used to fill it."""
    now = RememberedToolchain(dict(identity), dict(versions), versions_text(JAX))
    before = remembered_toolchains(store)
    if before[:1] != [now]:
        others = [toolchain for toolchain in before if toolchain.identity != now.identity]
        entries = [to_builtins(toolchain) for toolchain in [now, *others][:_MOST]]
        store.put_manifest(_KEY, Manifest(toolchains=entries))


def installed_or_remembered(
    store: Store, *, ptxas: Path | None = None, lock: Lock | None = None
) -> Setup | RememberedToolchain:
    """Return the installed toolchain, or else a toolchain that filled the store.

    Args:
        store: the store.
        ptxas: an assembler to use instead of the installed wheel's.
        lock: a lock; a remembered toolchain that matches it is preferred.

    Raises:
        ToolError: the installed toolchain is incomplete, or none is installed or remembered.
        NotCachedError: no toolchain is installed, and no remembered toolchain matches.
    """
    if ptxas is not None or is_compiler_installed():
        return prepare(ptxas)
    return choose_remembered(store, lock)


def choose_remembered(store: Store, lock: Lock | None = None) -> RememberedToolchain:
    """Return the newest remembered toolchain of this Python and pallasc, preferably the lock's.

    Raises:
        ToolError: the store remembers no toolchain.
        NotCachedError: this machine's Python or pallasc differs.
    """
    remembered = remembered_toolchains(store)
    if not remembered:
        raise ToolError(
            "No compiler is installed, and the store does not record which one filled it.",
            hint='Fill the store with a build, or install it with: pip install "pallasc[cuda13]"',
        )
    if lock is not None:
        locked = {k: v for k, v in lock.toolchain.items() if not k.startswith(VARIABLE)}
        fitting = [t for t in remembered if not differing(locked, components(t.identity, {}, {}))]
        remembered = fitting or remembered  # the build then names the differences from the lock
    here = {"python": python_name(), "pallasc": own_digest(FileDigests(store.root).digest)}
    for toolchain in remembered:
        if _python_and_pallasc(toolchain.identity) == here:
            return toolchain
    newest = remembered[0]
    before = components(_python_and_pallasc(newest.identity), newest.versions, {})
    clauses = differences(before, components(here, {"pallasc": installed_version()}, {}))
    raise NotCachedError(
        f"the store was filled with another toolchain: {'; '.join(clauses)}.",
        hint="Use the same versions of Python and pallasc.",
    )


def remembered_toolchains(store: Store) -> list[RememberedToolchain]:
    """Return the toolchains that a store was filled with, the newest first."""
    manifest = store.get_manifest(_KEY) or Manifest()
    try:
        found = convert(manifest.toolchains, list[RememberedToolchain])
    except ValidationError:  # the store may be untrusted
        return []
    return [each for each in found if {"python", "pallasc"} <= each.identity.keys()]


def _python_and_pallasc(identity: Mapping[str, str]) -> dict[str, str]:
    """Return the parts of an identity that can be compared with this installation.

    The part after the comma, Python's startup files, does not matter if no kernel is traced.
    """
    return {"python": identity["python"].partition(",")[0], "pallasc": identity["pallasc"]}


# ---- explanations of misses


class Explainer:
    """Explains the misses of a build; reads the store's manifests once.

    Args:
        lookup: the look-up that missed.
    """

    def __init__(self, lookup: Lookup) -> None:
        self._context, self._store = lookup.context, lookup.store

    @cached_property
    def _stored(self) -> list[Manifest]:
        manifests = map(self._store.get_manifest, self._store.names(MANIFESTS))
        return [each for each in manifests if each is not None and each.request]

    def explain(self, miss: Miss) -> tuple[str, ...]:
        """Explain a miss by its changed sources, or by the most similar request.

        Returns:
            Sentences, the most important first.

        Raises:
            ToolError: the assembler cannot be asked for its version.
        """
        if not miss.is_new:
            return tuple(change.sentence for change in miss.changes) or (miss.why,)
        variant = miss.variant
        now = short_fields(request_fields(variant, self._context))
        same = [(m, _request_fields(m)) for m in self._stored if m.name == variant.name]
        if not same:
            return ("the store has no entry for this kernel: it is new, or cannot be cached",)
        nearest, before = min(
            same, key=lambda each: (len(_differing(each[1], now)), each[0].variant != variant.id)
        )
        name = nearest.variant or variant.name
        then = components_in(before, nearest.versions)
        clauses = differences(then, self._context.components())
        labels = [n for n in _differing(before, now) if not n.startswith((TOOL, VARIABLE))]
        is_own = name == variant.id  # an explanation does not repeat its own variant's id
        reasons = []
        if labels:
            other = "" if is_own else f" from the key of {name}"
            reasons.append(f"its key differs{other} in: {', '.join(labels)}")
        if clauses:
            other = "" if is_own or labels else f"{name} was "
            reasons.append(f"{other}compiled with another toolchain: {'; '.join(clauses)}")
        return ("; ".join(reasons),)


def _request_fields(manifest: Manifest) -> dict[str, str]:
    """Return the labeled fields of a manifest's request key, {} if they are damaged."""
    try:
        fields = json.loads(manifest.request)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}


def _differing(stored: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the labels of fields whose values differ, sorted."""
    return [label for label in sorted({*stored, *now}) if stored.get(label) != now.get(label)]
