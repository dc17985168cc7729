"""Sources sent to the workers of a cluster, and their replies, verified by the build.

The build sends all files below the folders of specs and entry points, except hidden files,
bytecode, virtual environments, and caches; and modules elsewhere that the entry points reach by the
imports in their sources. It compares the inputs that a compilation read with the local files, so it
notices a file that was needed but not sent.

Nothing that a worker reports is trusted if it can be checked: each blob is hashed, the record is
parsed as untrusted input, and the sources that the compilation read must equal the local ones.
Whether a cubin comes from its source cannot be checked without compiling, so a cluster must be
trusted for that.
"""

from __future__ import annotations

import ast
import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from msgspec.structs import replace

from pallasc.cache.manifests import Manifest, manifest_from_json, set_name
from pallasc.cache.stat_digest import file_holding, read_held
from pallasc.cache.store import Store
from pallasc.compiler.inputs.lookup import Lookup
from pallasc.compiler.inputs.manifest import fields_text, joined
from pallasc.compiler.inputs.request import Request, named_entries, place_of
from pallasc.compiler.toolchain.modules import COVERED, is_installed, is_pythons, locate_module
from pallasc.compiler.workers.channel import decode, encode
from pallasc.compiler.workers.diagnostics import store_for_action
from pallasc.compiler.workers.messages import Compile, Compiled, Reply
from pallasc.compiler.workers.messages import Request as WorkerRequest
from pallasc.errors import CorruptError, ToolError
from pallasc.specs.artifacts.artifact import Artifact
from pallasc.specs.spec import Variant

REFUSED = "refused"
"""Kind of error of a worker that rejects all variants of a build."""
LONGEST_BYTES = 256 << 20
_MOST_VALUES = 1_000_000
"""When parsed, a value of three characters takes about 60 bytes."""


def reply_bytes(reply: Reply, root: str = "") -> bytes:
    """Return a reply as bytes to send, without the folder `root` in its paths."""
    return encode(reply.to_json()).replace(json.dumps(root)[1:-1].encode(), b"")


def read_reply(request: WorkerRequest, data: object) -> Reply:
    """Return the reply to a request from the bytes of `reply_bytes`.

    Raises:
        ValueError: it is malformed.
    """
    if type(data) is not bytes or len(data) > LONGEST_BYTES:
        raise ValueError("not bytes, or too many")
    if sum(map(data.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise ValueError("too many values")
    try:
        return request.read_reply(decode(data))
    except RecursionError as error:
        raise ValueError("values too deep in each other") from error


def publish(
    requests: Sequence[Request],
    lookup: Lookup,
    store: Store,
    label: int,
    asked: Compile,
    reply: Compiled,
) -> Compiled:
    """Publish an artifact that a worker compiled.

    Args:
        requests: the requests of a build's tasks, by their labels.
        lookup: compares sources with the local ones.
        store: the local store.
        label: the label of the task.
        asked: the request to the worker.
        reply: the worker's reply.

    Raises:
        ValueError: it is rejected.
    """
    keys = requests[label]
    try:
        _check_artifact(reply, asked)
        if reply.manifest is not None:
            manifest = _checked_manifest(reply, asked, keys.key)
            if changes := lookup.changes(manifest, keys.place):
                raise ValueError(f"its sources are not those here: {changes[0].sentence}")
            reply = replace(reply, manifest_key=set_name(keys.key, manifest.read))
    except CorruptError as error:
        raise ValueError(f"its answer is damaged: {error.message}") from error
    return _published(reply, asked, store)


def _check_artifact(reply: Compiled, asked: Compile) -> None:
    if reply.record is None:
        raise ValueError("its answer has no artifact")
    artifact = Artifact(reply.record, lambda name: reply.blobs.get(name, b""))
    artifact.blobs()
    _ = artifact.kernels, artifact.plan  # which read the rest of the record
    target = {name: value for name, value in artifact.target.items() if name != "name"}
    if target != asked.variant.target.figures():
        raise ValueError("its artifact is for another target")
    if {*reply.blobs} != {*artifact.record["blobs"]}:
        raise ValueError("its artifact comes with other files than it names")


def _checked_manifest(reply: Compiled, asked: Compile, key: str) -> Manifest:
    manifest = manifest_from_json(key, reply.manifest or {})
    claimed = (manifest.action, manifest.variant, manifest.request)
    if claimed != (reply.action, asked.variant.id, fields_text(asked.fields)):
        raise ValueError("its manifest is for another variant")
    sealed = joined(manifest, manifest)
    if sealed is None or sealed.read != manifest.read:
        raise ValueError("its manifest has another digest than its sources")
    for entry in named_entries(asked.variant):
        label = f"{'file' if entry.is_file else 'module'}:{entry.source}"
        if label not in manifest.files:
            raise ValueError(f"its manifest leaves out {label}")
    return manifest


def _published(reply: Compiled, asked: Compile, store: Store) -> Compiled:
    """Publish an artifact as a local worker does."""
    store.not_stored = ""
    if reply.status == "compiled":
        store_for_action(store, reply.action, reply.diagnostics)
    doubt = asked.trusted_records is not None
    put = store.put_artifact(reply.action, reply.record or {}, reply.blobs, replace=doubt)
    digest = put.stored_digest or put.digest
    return replace(
        reply,
        digest=digest,
        status="hit" if put.existed else "compiled",
        conflict=put.reason if put.conflict else None,
        stored=put.stored,
        not_stored=store.not_stored,
        manifest=reply.manifest and {**reply.manifest, "record": digest},
    )


MOST_FILES = 20_000
MOST_BYTES = 256 << 20
LARGEST_FILE_BYTES = 16 << 20
"""Larger files are sent only if a spec declares them under `files`."""

_LEFT_OUT = {"__pycache__", "node_modules"}
_SECRETS = (
    "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE", "CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE",
    "GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_GHA_CREDS_PATH", "NETRC", "PALLASC_STORE_KEY",
)  # fmt: skip
"""Variables that name files with credentials or keys; CI may put these next to the sources."""
_MARKS = ("pyvenv.cfg", "CACHEDIR.TAG", "v1/cas")
"""Files and folders that mark a virtual environment, a cache, or a store."""


@dataclass(slots=True)
class SentSources:
    """Files to send.

    Attributes:
        folders: folders that exist locally, even if none of their files is sent.
        files: contents by path.
        path: folders to search for modules.
    """

    folders: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    _bytes: int = 0

    def add(self, path: str) -> None:
        """Add a file.

        Raises:
            ToolError: there are too many files, or they are too large.
        """
        if path in self.files:
            return
        with contextlib.suppress(OSError):  # a compilation that reads it fails there, too
            self.files[path] = Path(path).read_bytes()
            self._bytes += len(self.files[path])
        if len(self.files) > MOST_FILES or self._bytes > MOST_BYTES:
            raise ToolError(
                f"there is too much to send to a cluster: more than {MOST_FILES} files or "
                f"{MOST_BYTES >> 20} MiB, the last one {path}.",
                hint="Give the specs a folder with only what their kernels need.",
            )

    def add_folder(self, folder: str, left_out: set[str]) -> None:
        """Add the files below a folder, except those in `left_out`."""
        if folder in self.folders:
            return
        self.folders.append(folder)
        for place, folders, names in os.walk(folder):
            is_marked = any(os.path.exists(os.path.join(place, mark)) for mark in _MARKS)
            if place != folder and (is_marked or os.path.realpath(place) in left_out):
                folders.clear()
                continue
            folders[:] = sorted(n for n in folders if n[0] != "." and n not in _LEFT_OUT)
            for path in (os.path.join(place, name) for name in sorted(names) if name[0] != "."):
                is_file = os.path.isfile(path) and os.path.realpath(path) not in left_out
                if is_file and os.path.getsize(path) <= LARGEST_FILE_BYTES:
                    self.add(path)


def sources_of(variants: Iterable[Variant], *, without: Sequence[str] = ()) -> SentSources:
    """Return the files that variants may need.

    Args:
        variants: the variants.
        without: folders that are left out, such as the store. Files that the environment names as
            credentials or keys are left out too, unless a spec declares them.

    Raises:
        ToolError: there are too many files, or they are too large.
    """
    result = SentSources()
    named = filter(None, map(os.environ.get, _SECRETS))
    left_out = {os.path.realpath(each) for each in (*without, *named)}
    for variant in {(v.base_dir, v.files, *named_entries(v)): v for v in variants}.values():
        folders = place_of(variant).folders
        for folder in dict.fromkeys([variant.base_dir, *folders]):
            result.add_folder(folder, left_out)
        for name in variant.files:
            result.add(os.path.join(variant.base_dir, name))
        for name, file in reached_modules(variant):
            _add_module(result, name, file, folders, left_out)
    return result


def reached_modules(variant: Variant) -> Iterator[tuple[str, Path]]:
    """Yield the user's modules that the entry points of a variant import, and their files."""
    folders, seen = place_of(variant).folders, set()
    pending: list[str] = []
    for entry in named_entries(variant):
        file = Path(variant.base_dir, entry.source).resolve()
        pending += _imported(file, "") if entry.is_file else [entry.source]
    while pending:
        name = pending.pop()
        if name in seen or name.partition(".")[0] in (*COVERED, "pallasc"):
            continue
        seen.add(name)
        found: Path | None = None
        with contextlib.suppress(ImportError, OSError, ValueError, AttributeError):
            found = locate_module(name, folders)
        if found is None or found.suffix != ".py":
            continue
        if is_installed(str(found)) or is_pythons(str(found)):
            continue
        yield name, found
        parent = name.rpartition(".")[0]
        pending += [parent] if parent else []
        pending += _imported(found, name if found.name == "__init__.py" else parent)


def _add_module(
    result: SentSources, name: str, file: Path, folders: Sequence[str], left_out: set[str]
) -> None:
    is_package = file.name == "__init__.py"
    outer = file.parents[name.count(".") + is_package]
    if str(outer) not in (*folders, *result.path):
        result.path.append(str(outer))
    if file.is_file() and ("." in name or is_package):  # in an archive, there is no such file
        result.add_folder(str(outer / name.partition(".")[0]), left_out)
    result.add(file_holding(str(file)))


@lru_cache(maxsize=1000)
def _imported(file: Path, package: str) -> tuple[str, ...]:
    """Return the names of the modules that a source file imports, or may import."""
    try:
        tree = ast.parse(read_held(str(file)))
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    return tuple(name for node in ast.walk(tree) for name in _named(node, package))


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: 1 - node.level or None] if node.level and package else []
        base = ".".join([*above, *filter(None, [node.module])])
        if base:
            yield base
            # A name may be a module, or an attribute.
            yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")
