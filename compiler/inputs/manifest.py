"""Manifests of compilations: what a request key leads to, so that a hit needs no JAX.

A manifest says which files and packages the last compilation of a request read, with their digests,
and which action key came out (as ccache's direct mode does). Where all of them still match, the
record under that action key is the answer (`lookup`).

Manifest, schema 3:

* `action`: the action key, `record`: the digest of the record that came out under it
* `files`: label -> digest, `packages`: name -> digest, `package_versions`: name -> version
* `opened`: label -> digest of what else was read or asked for, labels as in `reads`; null for none
* `missed`: environment variable, or file of the user's home, that was asked for and is withheld ->
  `file:line` of who asked; so that the build can say so where it is set
* `absent`: modules that were asked for in vain; `hidden`: modules of Python that others hide
* `read`: digest over all of these, so that variants that read the same are seen to
* `about`: name, target and parameters of the variant that was compiled last, and its seconds
* `name`, `variant`: its kernel and its id
* `printed`: what tracing printed (`kernel_output`), `diagnostics`: what was said (`diagnostics`);
  where there is nothing, neither
* `versions`: label -> version of each part of the toolchain, for people (`components`)
* `request`, `fields`: the labelled fields of both keys, long ones as `sha256:` digests, so that a
  miss can be explained; as a text of JSON, which is read only then

`cache/manifests` declares the fields and checks them; `signed` is added by `cache/signing`.

Schema 2 had `variables`, digests of the values that were looked up, and `current_folder`, when
workers still had the environment of the build. Schema 1 had no `read`, and its request key was over
every field of the toolchain one by one.
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
from pallasc.compiler.toolchain.installed import version_of
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
    return replace(
        sources,
        package_versions={name: version for name, version in versions.items() if version},
        schema=MANIFEST_SCHEMA,
        action=action_key,
        read=digest(canonical_json(sources.to_json())),
    )


def short_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return labelled fields with the digest in place of every long value."""
    return {
        label: value if len(value) <= _LONGEST_FIELD else f"sha256:{digest(value.encode())}"
        for label, value in fields.items()
    }


def fields_text(fields: Mapping[str, str]) -> str:
    """Return labelled fields as a manifest holds them."""
    return canonical_text(short_fields(fields))


def fields_in(text: str) -> dict[str, str]:
    """Return the labelled fields in `request` or `fields` of a manifest; none if damaged."""
    try:
        fields = json.loads(text)
    except ValueError:
        return {}
    return fields if isinstance(fields, dict) else {}
