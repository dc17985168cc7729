"""Objects of S3, Google, Azure and plain HTTP servers, through obstore.

obstore retries, waits and explains by itself; here it does none of it: one request a call, no
retry, a time-out, and its errors become ours word by word (`failure.py`), because its own texts
quote addresses and answers.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from pallasc.cache.remote import credentials
from pallasc.cache.remote.address import Address
from pallasc.cache.remote.failure import Failure, RemoteError, missing, translated
from pallasc.cache.remote.objects import CHUNK_BYTES, Got, Item, OnBytes, too_large

_CONNECT_S = 5.0
_INSTALL = "Install the extra: pip install 'pallasc[remote]'."
T = TypeVar("T")


class ObstoreObjects:
    """Objects below an address of `s3://`, `gs://`, `az://`, `http://` or `https://`.

    The connection is made by the first request, since importing obstore takes 0.15 s.

    Args:
        address: where they are.
        environ: where credentials and endpoints are looked up.
        timeout_s: the longest that one request may take.
    """

    def __init__(
        self, address: Address, *, environ: Mapping[str, str] = os.environ, timeout_s: float = 60.0
    ) -> None:
        self._address = address
        self._environ = environ
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._made: Any = None
        self.has_versions = address.scheme in ("s3", "gs", "az")
        self.has_listing = True
        self.has_ranges = True

    def get(self, name: str, *, limit_bytes: int, on_bytes: OnBytes) -> Got:
        """Return a whole object."""
        what = f"GET {self._shown(name)}"

        def read(store: Any) -> Got:
            result = store.get(self._key(name))
            size = result.meta["size"]
            if size > limit_bytes:
                raise too_large(what, size, limit_bytes)
            return Got(_read(result, on_bytes), _version(result.meta))

        return self._call(what, read)

    def get_part(self, name: str, start: int, size: int, *, on_bytes: OnBytes) -> bytes:
        """Return a part of an object."""
        what = f"GET {self._shown(name)}"

        def read(store: Any) -> bytes:
            result = store.get(self._key(name), options={"range": (start, start + size)})
            data = _read(result, on_bytes)
            if len(data) != size:
                raise RemoteError(f"{what}: the answer is not the part asked for", Failure.TORN)
            return data

        return self._call(what, read)

    def put(self, name: str, data: bytes, *, needs: Mapping[str, int] | None = None) -> None:
        """Write an object, in the place of an older one."""
        what = f"PUT {self._shown(name)}"
        self._call(what, lambda store: store.put(self._key(name), data, use_multipart=False))

    def put_if(self, name: str, data: bytes, version: str | None) -> bool:
        """Write an object if it still has this version, None for "does not exist"."""
        if not self.has_versions:
            self.put(name, data)
            return True
        if version == "":
            raise RemoteError(
                f"PUT {self._shown(name)}: the server gives no versions of objects",
                Failure.UNSUPPORTED,
            )
        mode = "create" if version is None else _mode(version)

        def write(store: Any) -> bool:
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            try:
                store.put(self._key(name), data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

        return self._call(f"PUT {self._shown(name)}", write)

    def list(self, prefix: str) -> Iterator[Item]:
        """Give all objects whose name begins with `prefix`."""
        root = f"{self._address.path}/" if self._address.path else ""

        def read(store: Any) -> list[Item]:
            found = store.list(self._key(prefix).rstrip("/"))
            return [
                Item(
                    meta["path"].removeprefix(root), meta["size"], meta["last_modified"].timestamp()
                )
                for batch in found
                for meta in batch
            ]

        yield from self._call(f"LIST {self._shown(prefix)}", read)

    def delete(self, name: str) -> None:
        """Delete an object; one that does not exist is no error."""
        try:
            self._call(f"DELETE {self._shown(name)}", lambda store: store.delete(self._key(name)))
        except RemoteError as error:
            if error.failure is not Failure.MISSING:
                raise

    @property
    def _in_bucket(self) -> bool:
        return self._address.scheme in ("s3", "gs", "az")

    def _key(self, name: str) -> str:
        path = self._address.path
        return f"{path}/{name}" if self._in_bucket and path else name

    def _shown(self, name: str) -> str:
        return f"{self._address}/{name}"

    def _call(self, what: str, use: Callable[[Any], T]) -> T:
        """Make a request; its error is raised outside of where the library's was handled.

        Otherwise the library's text would stay reachable through `__context__`.
        """
        store = self._store()
        from obstore.exceptions import BaseError

        try:
            return use(store)
        except RemoteError:
            raise
        except FileNotFoundError as error:
            problem = missing(str(error), what)
        except (BaseError, OSError, NotImplementedError, ValueError, TypeError) as error:
            problem = translated(str(error), what)
        raise problem

    def _store(self) -> Any:
        with self._lock:
            if self._made is None:
                self._made = self._connect()
            return self._made

    def _connect(self) -> Any:
        """Return obstore's store.

        Raises:
            RemoteError: obstore is missing, or the settings of the address cannot be used.
        """
        try:
            from obstore import store as stores
            from obstore.exceptions import BaseError
        except ImportError:
            raise RemoteError(
                f"{self._address}: needs the package obstore, which is not installed",
                Failure.SETTINGS,
                hint=_INSTALL,
            ) from None
        options: dict[str, Any] = {
            "client_options": self._client_options(),
            "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
        }
        scheme, place = self._address.scheme, self._address.place
        try:
            if scheme == "s3":
                return stores.S3Store(place, **options, **self._s3_options())
            if scheme == "gs":
                return stores.GCSStore(place, **options, **credentials.gcs_options(self._environ))
            if scheme == "az":
                return stores.AzureStore(place, **options)
            return stores.HTTPStore(self._address.web_url, **options)
        except RemoteError:
            raise
        except (BaseError, OSError, ValueError, TypeError):
            problem = RemoteError(
                f"{self._address}: the environment has no complete settings for this remote",
                Failure.SETTINGS,
            )
        raise problem

    def _s3_options(self) -> dict[str, Any]:
        found = credentials.s3_options(self._environ)
        named = any(self._environ.get(n) for n in ("AWS_REGION", "AWS_DEFAULT_REGION"))
        if named:
            found.pop("region", None)
        elif "region" not in found:
            found["region"] = "us-east-1"
        if any(name.startswith("AWS_ENDPOINT") for name in self._environ):
            found.pop("endpoint", None)
        return found

    def _client_options(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            "timeout": timedelta(seconds=self._timeout_s),
            "connect_timeout": timedelta(seconds=min(_CONNECT_S, self._timeout_s)),
            "allow_http": True,
            "user_agent": "pallasc",
        }
        if not self._in_bucket:
            header = credentials.authorization(self._address, self._environ)
            if header is not None:
                options["default_headers"] = {"Authorization": header}
        return options


def _read(result: Any, on_bytes: OnBytes) -> bytes:
    """Return the body of an answer."""
    parts = []
    for chunk in result.stream(CHUNK_BYTES):
        parts.append(bytes(chunk))
        on_bytes(parts[-1])
    return b"".join(parts)


def _version(meta: Mapping[str, Any]) -> str:
    """Return one text for the version that obstore tells; `_mode` is its inverse."""
    tag, version = meta.get("e_tag") or "", meta.get("version") or ""
    return f"{tag}\n{version}" if tag or version else ""


def _mode(version: str) -> dict[str, str]:
    tag, _, number = version.partition("\n")
    return {label: text for label, text in (("e_tag", tag), ("version", number)) if text}
