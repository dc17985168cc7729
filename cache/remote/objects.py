"""Objects of a remote store through obstore, one request at a time, with errors without secrets.

obstore's messages quote addresses, headers, and answers, which may hold credentials. An error here
consists of words from this module, numbers, and names that match a pattern, and has no other
exception attached.

Credentials come from obstore's own look at the environment, and:

    s3     the profile $AWS_PROFILE or `default` of ~/.aws where the environment has none: static
           keys, region, endpoint_url; boto3, if installed, reads every other kind of profile
    gs     google-auth, if installed, reads workload identity (`external_account`)
    http   user and password of the URL, else PALLASC_REMOTE_TOKEN as a bearer token, else the
           host's entry in $NETRC or ~/.netrc
"""

from __future__ import annotations

import base64
import configparser
import json
import os
import re
import stat
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pallasc.cache.remote.settings import CLOUDS, Address, RemoteStats
from pallasc.errors import ToolError

TOKEN = "PALLASC_REMOTE_TOKEN"
T = TypeVar("T")
_CHUNK_BYTES = 256 * 2**10
_CONNECT_S = 5.0
_AWS_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_AWS_LABELS = {
    "region": "region",
    "endpoint_url": "endpoint",
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "role_arn": "role_arn",
    "web_identity_token_file": "web_identity_token_file",
}
_FOR_BOTO3 = ("sso_session", "sso_start_url", "source_profile", "credential_process", "role_arn")


class Failure(StrEnum):
    """The kinds of failures; those in `OF_ONE_OBJECT` leave the rest of the remote usable."""

    MISSING = "missing"
    TORN = "torn"
    NO_RANGES = "no ranges"
    TOO_LARGE = "too large"
    REFUSED = "refused"
    BROKEN = "broken"
    UNREACHABLE = "unreachable"
    SLOW = "slow"
    SETTINGS = "settings"


OF_ONE_OBJECT = (Failure.MISSING, Failure.TORN, Failure.NO_RANGES)
_HINTS = {
    Failure.MISSING: "Check the address; `pallasc cache push` makes what is missing.",
    Failure.TORN: "Try again; if it stays, look at the network and any proxy.",
    Failure.NO_RANGES: "Use a server that answers requests for ranges.",
    Failure.TOO_LARGE: "Check the server: pallasc writes no object of that size.",
    Failure.REFUSED: "Check the credentials and what they may do, and the address.",
    Failure.BROKEN: "Try again; if it stays, look at the server's own log.",
    Failure.UNREACHABLE: "Check the address, the network, the certificate and any proxy.",
    Failure.SLOW: "Try again later, or allow more time with --timeout.",
    Failure.SETTINGS: "Check the settings and credentials of the remote.",
}


class RemoteError(ToolError):
    """A remote store did not do what was asked; `failure` is the kind."""

    def __init__(self, message: str, failure: Failure, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint or _HINTS[failure])
        self.failure = failure


_STATUS = re.compile(r"status code: (\d{3})\b|\bstatus: (\d{3})\b", re.ASCII)
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>", re.ASCII)
_CERTIFICATE = re.compile(
    r"\b(UnknownIssuer|Expired|NotValidForName|NotValidYet|BadSignature|Revoked|BadEncoding"
    r"|CaUsedAsEndEntity)\b"
)
_OF_STATUS = {
    404: Failure.MISSING, 410: Failure.MISSING, 401: Failure.REFUSED, 403: Failure.REFUSED,
    407: Failure.REFUSED, 408: Failure.SLOW, 413: Failure.TOO_LARGE, 504: Failure.SLOW,
}  # fmt: skip
# Text of the library, the failure, our text. The first match counts.
_SIGNS = (
    ("RangeNotSupported", Failure.NO_RANGES, "the server does not answer requests for ranges"),
    ("non-partial response", Failure.NO_RANGES, "the server does not answer requests for ranges"),
    ("certificate", Failure.UNREACHABLE, "the server's certificate is not valid"),
    ("ConnectionRefused", Failure.UNREACHABLE, "the connection is refused"),
    ("dns error", Failure.UNREACHABLE, "the host's name cannot be resolved"),
    ("failed to lookup address", Failure.UNREACHABLE, "the host's name cannot be resolved"),
    ("Unreachable", Failure.UNREACHABLE, "the host or network cannot be reached"),
    ("TimedOut", Failure.SLOW, "no answer came in time"),
    ("Timeout", Failure.SLOW, "no answer came in time"),
    ("ConnectionReset", Failure.BROKEN, "the connection was reset"),
    ("IncompleteBody", Failure.TORN, "the answer ended early"),
    ("body error", Failure.TORN, "the answer broke off"),
    ("decoding response body", Failure.TORN, "the answer broke off"),
    ("MissingContentLength", Failure.BROKEN, "the answer has no Content-Length"),
    ("Credential", Failure.REFUSED, "there are no credentials"),
    ("kind: Connect", Failure.UNREACHABLE, "no connection can be made"),
    ("Not a directory", Failure.SETTINGS, "Not a directory"),
    ("Permission denied", Failure.REFUSED, "Permission denied"),
    ("No space left", Failure.BROKEN, "No space left on device"),
    ("Read-only file system", Failure.REFUSED, "Read-only file system"),
)


def translated(text: str, action: str, *, missing: bool = False) -> RemoteError:
    """Return the error for a library's message; only known names of it are used.

    Args:
        text: the library's message.
        action: what was tried and where, without credentials.
        missing: the library reports a missing object.
    """
    code = _CODE.search(text)
    status = _STATUS.search(text)
    number = int(status[1] or status[2]) if status else 404 if missing else 0
    hint: str | None
    if code and code[1] in ("NoSuchBucket", "ContainerNotFound"):
        hint = "Check the address, and what names the server, such as AWS_ENDPOINT_URL."
        return RemoteError(f"{action}: there is no such bucket", Failure.SETTINGS, hint=hint)
    if number:
        shown = f"{number} ({code[1]})" if code else str(number)
        hint = "Make the folder of the address on the server." if number == 409 else None
        failure = _OF_STATUS.get(number, Failure.BROKEN)
        return RemoteError(f"{action}: the server answers {shown}", failure, hint=hint)
    for sign, failure, why in _SIGNS:
        if sign in text:
            fault = _CERTIFICATE.search(text) if sign == "certificate" else None
            hint = "Name the certificate of its authority in SSL_CERT_FILE." if fault else None
            return RemoteError(
                f"{action}: {why}" + (f" ({fault[1]})" if fault else ""), failure, hint=hint
            )
    return RemoteError(f"{action}: the request failed", Failure.BROKEN)


class Got(NamedTuple):
    """Bytes of an object, and the version of the object, "" where the server has none."""

    data: bytes
    version: str


class StoredObject(NamedTuple):
    """An object as a listing has it; `modified_s` in seconds since 1970."""

    name: str
    size: int
    modified_s: float


class Objects:
    """Objects below an address; every method raises only `RemoteError`.

    Names are relative to the address. Importing obstore waits for the first request.

    Args:
        address: where they are.
        stats: counts requests and bytes.
        environ: where credentials and endpoints are looked up.
        timeout_s: the longest that one request may take.
        retries: how often a request is repeated after 5xx, 429, or a lost connection.
    """

    def __init__(
        self,
        address: Address,
        stats: RemoteStats,
        *,
        environ: Mapping[str, str] = os.environ,
        timeout_s: float = 60.0,
        retries: int = 1,
    ) -> None:
        self.address, self.stats = address, stats
        self._environ, self._timeout_s, self._retries = environ, timeout_s, retries
        self._made: Any = None

    async def get(self, name: str, *, limit: int, start: int = 0, size: int | None = None) -> Got:
        """Return an object, or `size` bytes of it from `start` on; TOO_LARGE over `limit` bytes.

        The stream is dropped at the first byte too many, which ends the download.
        """
        what = f"GET {self.address}/{name}"
        options = {} if size is None else {"range": (start, start + size)}
        limit = limit if size is None else size

        async def read() -> Got:
            store = self._store(name)
            result = await store.get_async(self._key(name), options=options)
            meta = result.meta
            parts, arrived = [], 0
            if size is None and meta["size"] > limit:
                arrived = limit + 1
            else:
                async for chunk in result.stream(_CHUNK_BYTES):
                    parts.append(bytes(chunk))
                    arrived += len(parts[-1])
                    self.stats.bytes_read += len(parts[-1])
                    if arrived > limit:
                        break
            if arrived > limit:
                raise RemoteError(f"{what}: over the limit of {limit:,} bytes", Failure.TORN)
            if size is not None and arrived != size:
                raise RemoteError(f"{what}: {arrived:,} bytes instead of {size:,}", Failure.TORN)
            return Got(b"".join(parts), _version(meta))

        return await self._call(what, read())

    async def put(self, name: str, data: bytes, *, mode: Any = "overwrite") -> bool:
        """Write an object; return False where `mode` does not allow to replace the present one."""

        async def write() -> bool:
            from obstore.exceptions import AlreadyExistsError, PreconditionError

            store = self._store(name, write=True)
            try:
                await store.put_async(self._key(name), data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                if mode == "overwrite":
                    raise
                return False
            self.stats.bytes_written += len(data)
            return True

        return await self._call(f"PUT {self.address}/{name}", write())

    async def put_if(self, name: str, data: bytes, version: str | None) -> bool:
        """Write an object if it still has this version, None for "does not exist".

        Plain web servers and folders have no such condition; there the object is written.
        """
        if self.address.scheme not in CLOUDS:
            return await self.put(name, data)
        tag, _, number = (version or "").partition("\n")
        known = {label: text for label, text in (("e_tag", tag), ("version", number)) if text}
        return await self.put(name, data, mode=known or "create")

    async def listed(self, prefix: str) -> list[StoredObject]:
        """Return the objects in a folder and below it."""
        root = f"{self.address.path}/" if self._in_bucket and self.address.path else ""

        async def read() -> list[StoredObject]:
            found = []
            async for batch in self._store(prefix).list(self._key(prefix)):
                for meta in batch:
                    name, time = meta["path"].removeprefix(root), meta["last_modified"].timestamp()
                    found.append(StoredObject(name, meta["size"], time))
            return found

        return await self._call(f"LIST {self.address}/{prefix}", read())

    async def folders(self, prefix: str) -> list[str]:
        """Return the names of the folders in a folder."""

        async def read() -> list[str]:
            found = await self._store(prefix).list_with_delimiter_async(self._key(prefix))
            return [path.rstrip("/").rpartition("/")[2] for path in found["common_prefixes"]]

        return await self._call(f"LIST {self.address}/{prefix}", read())

    async def delete(self, name: str) -> None:
        """Delete an object; one that does not exist is no error."""
        try:
            delete = self._store(name).delete_async
            await self._call(f"DELETE {self.address}/{name}", delete(self._key(name)))
        except RemoteError as error:
            if error.failure is not Failure.MISSING:
                raise

    @property
    def _in_bucket(self) -> bool:
        return self.address.scheme in CLOUDS

    def _key(self, name: str) -> str:
        return f"{self.address.path}/{name}" if self._in_bucket and self.address.path else name

    async def _call(self, what: str, request: Coroutine[Any, Any, T]) -> T:
        """Make a request; its error is raised where the library's is not in `__context__`."""
        self.stats.requests += 1
        try:
            return await request
        except RemoteError:
            raise
        except FileNotFoundError as error:
            problem = translated(str(error), what, missing=True)
        except Exception as error:  # noqa: BLE001 - obstore also raises bare and built-in ones
            problem = translated(str(error), what)
        raise problem

    def _store(self, name: str = "", *, write: bool = False) -> Any:
        if self.address.scheme == "file":
            self._check_folder(name, write=write)
        if self._made is None:
            self._made = self._connect()
        return self._made

    def _check_folder(self, name: str, *, write: bool) -> None:
        """Make the folder of the address for a writer; refuse links and pipes below it."""
        root = Path(self.address.path)
        if not root.exists():
            if not write:
                raise RemoteError(f"{self.address}: does not exist", Failure.MISSING)
            root.mkdir(parents=True)
        for place in (root / name, *(root / name).parents):
            if place == root:
                break
            if os.path.lexists(place):
                mode = place.lstat().st_mode
                if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                    text = f"{self.address}: {place.relative_to(root)} is not a folder or file"
                    raise RemoteError(text, Failure.TORN)

    def _connect(self) -> Any:
        try:
            from obstore import store as stores
        except ImportError:
            raise RemoteError(
                f"{self.address}: needs the package obstore, which is not installed",
                Failure.SETTINGS,
                hint="Install the extra: pip install 'pallasc[remote]'.",
            ) from None
        scheme, place = self.address.scheme, self.address.place
        options: dict[str, Any] = {
            "client_options": {
                "timeout": timedelta(seconds=self._timeout_s),
                "connect_timeout": timedelta(seconds=min(_CONNECT_S, self._timeout_s)),
                "allow_http": True,
                "user_agent": "pallasc",
            },
            "retry_config": {
                "max_retries": self._retries,
                "retry_timeout": timedelta(seconds=3),
                "backoff": {
                    "init_backoff": timedelta(seconds=0.3),
                    "max_backoff": timedelta(seconds=1),
                    "base": 2,
                },
            },
        }
        try:
            if scheme == "file":
                return stores.LocalStore(self.address.path)
            if scheme == "s3":
                return stores.S3Store(place, **options, **s3_options(self._environ))
            if scheme == "gs":
                return stores.GCSStore(place, **options, **gcs_options(self._environ))
            if scheme == "az":
                return stores.AzureStore(place, **options)
            header = authorization(self.address, self._environ)
            if header is not None:
                options["client_options"]["default_headers"] = {"Authorization": header}
            return stores.HTTPStore(_web_url(self.address), **options)
        except RemoteError:
            raise
        except Exception as error:  # noqa: BLE001 - obstore also raises bare and built-in ones
            text = str(error) if scheme == "file" else ""
        if scheme == "file":
            raise translated(text, str(self.address))
        raise _unusable(f"{self.address}: the environment has no complete settings for this remote")


def _web_url(address: Address) -> str:
    return f"{address.scheme}://{address.place}" + (f"/{address.path}" if address.path else "")


def _version(meta: Mapping[str, Any]) -> str:
    tag, version = meta.get("e_tag") or "", meta.get("version") or ""
    return f"{tag}\n{version}" if tag or version else ""


def _unusable(text: str, hint: str | None = None) -> RemoteError:
    return RemoteError(text, Failure.SETTINGS, hint=hint)


def authorization(address: Address, environ: Mapping[str, str]) -> str | None:
    """Return the header `Authorization` for requests of HTTP, None where there is none.

    Raises:
        RemoteError: a token or netrc file cannot be used.
    """
    if address.login is not None:
        return _basic(*address.login)
    token = environ.get(TOKEN, "").strip()
    if not token:
        return _netrc(address, environ)
    if not token.isascii() or not token.isprintable():
        raise _unusable(f"{TOKEN} has characters that no header may have")
    return f"Bearer {token}"


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _netrc(address: Address, environ: Mapping[str, str]) -> str | None:
    import netrc

    named = environ.get("NETRC")
    path = Path(named) if named else _home(environ) / ".netrc"
    if not path.is_file():
        return None
    host = address.place.rpartition("]")[0].lstrip("[") or address.place.partition(":")[0]
    try:
        if not named and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            problem = "other users can read it"
        else:
            entry = netrc.netrc(path).authenticators(host)
            return _basic(entry[0], entry[2] or "") if entry else None
    except OSError as error:
        problem = error.strerror or "it cannot be read"
    except netrc.NetrcParseError as error:
        problem = f"line {error.lineno} is not understood"
    raise _unusable(f"{path}: {problem}")


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or "/nonexistent")


def s3_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of obstore's S3 store that its own look at the environment lacks.

    Raises:
        RemoteError: the profile does not exist, or cannot be used.
    """
    profile: dict[str, str] = {}
    found: dict[str, Any] = {}
    name = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    if not any(environ.get(variable) for variable in _AWS_VARIABLES):
        profile = _profile(environ, name or "default")
        if name and not profile:
            raise _unusable(f"the profile {name} of AWS has no entry in ~/.aws")
    is_static = "aws_access_key_id" in profile and "source_profile" not in profile
    is_plain = is_static or "web_identity_token_file" in profile
    if not is_plain and any(label in profile for label in _FOR_BOTO3):
        found["credential_provider"] = _boto3_provider(name or "default")
        profile = {
            label: profile[label] for label in ("region", "endpoint_url") if label in profile
        }
    found |= {option: profile[label] for label, option in _AWS_LABELS.items() if label in profile}
    if any(environ.get(each) for each in ("AWS_REGION", "AWS_DEFAULT_REGION")):
        found.pop("region", None)
    else:
        found.setdefault("region", "us-east-1")
    if any(each.startswith("AWS_ENDPOINT") for each in environ):
        found.pop("endpoint", None)
    return found


def _profile(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """Return a profile from both files of AWS; the credentials file wins."""
    home = _home(environ) / ".aws"
    config = environ.get("AWS_CONFIG_FILE") or home / "config"
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials"
    section = name if name == "default" else f"profile {name}"
    return {**_section(Path(config), section), **_section(Path(credentials), name)}


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    try:
        with path.open(encoding="utf-8") as file:
            parser.read_file(file)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error):
        parser.clear()
        readable = False
    else:
        readable = True
    if not readable:
        raise _unusable(f"{path}: it cannot be read")
    if not parser.has_section(name):
        return {}
    return {label: value.strip() for label, value in parser.items(name) if value}


def _provider(make: Callable[[], Any], who: str, packages: str) -> Any:
    """Return a provider of credentials; an error shows nothing of the library's text."""
    try:
        return make()
    except ImportError:
        problem = f"{who}: needs {packages}"
    except Exception:  # noqa: BLE001 - these libraries' errors quote files of credentials
        problem = f"{who}: {packages} cannot use it"
    hint = f"Install {packages}"
    if packages == "boto3":
        hint += ", or set the variables that `aws configure export-credentials --format env` prints"
    raise _unusable(problem, f"{hint}.")


def _boto3_provider(name: str) -> Any:
    def make() -> Any:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider

        return Boto3CredentialProvider(boto3.Session(profile_name=name))

    return _provider(make, f"the profile {name} of AWS", "boto3")


def gcs_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of obstore's Google store that its own look at the environment lacks.

    Raises:
        RemoteError: the credentials need google-auth, and it is missing.
    """
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if not named:
        return {}
    try:
        kind = json.loads(Path(named).read_bytes()).get("type", "")
    except (OSError, ValueError, AttributeError):
        kind = None
    if kind is None:
        raise _unusable("GOOGLE_APPLICATION_CREDENTIALS names no readable file of JSON")
    if kind in ("service_account", "authorized_user"):
        return {}

    def make() -> Any:
        from obstore.auth.google import GoogleCredentialProvider

        return GoogleCredentialProvider()

    who = "the credentials in $GOOGLE_APPLICATION_CREDENTIALS"
    return {"credential_provider": _provider(make, who, "google-auth and requests")}
