"""Manifests of compilations: what is stored for a request key, so that a hit needs no JAX.

As in ccache's direct mode, a manifest lists the files and packages that a compilation of a request
read, with their digests, and the resulting action key. If all digests match, the record under that
action key is a hit (`lookup`). A request key keeps a manifest for each of the last sets of sources
(`cache/manifests.MAX_SETS`), each named by the request key and `read`, so branches and folders
that share a store do not replace each other's.

Manifest, schema 4:

* `action`: the action key, `record`: the digest of the record under it
* `files`: label -> digest, `packages`: name -> digest, `package_versions`: name -> version
* `opened`: label -> digest of anything else that was read or queried, labels as in `reads`; null
  for what does not exist
* `missed`: environment variable, or file in the user's home, that was requested but is hidden from
  kernels -> `file:line` of the request; the build warns if it exists
* `absent`: modules whose import failed; `hidden`: modules of Python that files shadow
* `read`: digest over all of these; equal for variants that read the same
* `about`: name, target and parameters of the variant that was compiled last, and its seconds
* `name`, `variant`: its kernel and its id
* `printed`: output of tracing (`kernel_output`), `diagnostics`: warnings (`diagnostics`); omitted
  if empty
* `versions`: label -> version of each part of the toolchain, for messages (`components`)
* `request`, `fields`: the labelled fields of both keys as JSON text, parsed only to explain a miss;
  long values as `sha256:` digests

`cache/manifests` declares the fields and checks them; `signed` is added by `cache/signing`.

Schema 3 was the same, with one manifest per request key and one per folder. Schema 2 had
`variables` (digests of environment variables) and `current_folder`, as workers then inherited the
environment of the build. Schema 1 had no `read`, and its request key covered each field of the
toolchain separately.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from pallasc.cache.manifests import Manifest
from pallasc.cache.stat_digest import FileDigests
from pallasc.compiler.inputs.reads import digest_of
from pallasc.compiler.inputs.request import MANIFEST_SCHEMA
from pallasc.compiler.inputs.sources import Sources
from pallasc.compiler.toolchain.identity import package_digest
from pallasc.compiler.toolchain.toolchain import version_of
from pallasc.specs.canonical import canonical_json, canonical_text, digest

_LONGEST_FIELD = 400


def make_manifest(action_key: str, read: Sources, digests: FileDigests) -> Manifest:
    """Return the manifest of a compilation that read these sources."""
    files = {label: digests.digest(path) for label, path in sorted(read.files.items())}
    packages = {
        name: package_digest(name, digests.digest, read.folders) for name in sorted(read.packages)
    }
    opened = {
        label: digest_of(label, path, digests.digest) for label, path in sorted(read.opened.items())
    }
    versions = {name: version_of(name) for name in packages}
    sources = Manifest(
        files=files,
        packages=packages,
        opened=opened,
        missed=dict(sorted(read.missed.items())),
        absent=sorted(read.absent),
        hidden=read.hidden,
    )
    package_versions = {name: version for name, version in versions.items() if version}
    return replace(_sealed(sources), action=action_key, package_versions=package_versions)


def joined(first: Manifest, second: Manifest) -> Manifest | None:
    """Return `second` with what `first` lists too, None where they contradict each other."""
    if first.hidden != second.hidden:
        return None
    for ours, theirs in (
        (first.files, second.files),
        (first.packages, second.packages),
        (first.opened, second.opened),
    ):
        if any(theirs.get(label, recorded) != recorded for label, recorded in ours.items()):
            return None
    sources = Manifest(
        files={**first.files, **second.files},
        packages={**first.packages, **second.packages},
        opened={**first.opened, **second.opened},
        missed={**first.missed, **second.missed},
        absent=sorted({*first.absent, *second.absent}),
        hidden=second.hidden,
    )
    package_versions = {**first.package_versions, **second.package_versions}
    return replace(_sealed(sources), action=second.action, package_versions=package_versions)


def _sealed(sources: Manifest) -> Manifest:
    """Return a manifest with the digest over its sources, and the schema."""
    read = digest(canonical_json(sources.to_json()))
    return replace(sources, schema=MANIFEST_SCHEMA, read=read)


def short_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return labelled fields with long values replaced by their digests."""
    return {
        label: value if len(value) <= _LONGEST_FIELD else f"sha256:{digest(value.encode())}"
        for label, value in fields.items()
    }


def fields_text(fields: Mapping[str, str]) -> str:
    """Return labelled fields as text for a manifest."""
    return canonical_text(short_fields(fields))


def fields_in(text: str) -> dict[str, str]:
    """Parse `request` or `fields` of a manifest; {} if damaged."""
    try:
        fields = json.loads(text)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
