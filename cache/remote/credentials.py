"""Credentials of remote stores, from where the clouds' own tools have them.

    s3     the environment (AWS_ACCESS_KEY_ID, AWS_WEB_IDENTITY_TOKEN_FILE, container and instance
           roles), else the profile $AWS_PROFILE or `default` of ~/.aws: keys, region,
           endpoint_url, role_arn with web_identity_token_file. What else a profile may say (sso,
           role_arn with source_profile, credential_process) boto3 reads, if it is installed
    gs     GOOGLE_APPLICATION_CREDENTIALS, else what `gcloud auth application-default login` wrote;
           of the type `external_account` (workload identity) with google-auth, if installed
    az     AZURE_STORAGE_ACCOUNT_NAME with AZURE_STORAGE_ACCOUNT_KEY, AZURE_STORAGE_SAS_TOKEN, or
           AZURE_CLIENT_ID and AZURE_TENANT_ID with AZURE_CLIENT_SECRET or
           AZURE_FEDERATED_TOKEN_FILE; AZURE_USE_AZURE_CLI=true asks `az`
    http   user and password of the URL, else PALLASC_REMOTE_TOKEN as a bearer token, else the
           host's entry in $NETRC or ~/.netrc

Nothing here is shown or written anywhere; what cannot be read is named, not quoted.
"""

from __future__ import annotations

import base64
import configparser
import json
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pallasc.cache.remote.address import Address
from pallasc.cache.remote.failure import Failure, RemoteError

TOKEN = "PALLASC_REMOTE_TOKEN"
_IN_ENVIRONMENT = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)
_STATIC = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
}
_PLACE = {"region": "region", "endpoint_url": "endpoint"}
_FOR_BOTO3 = ("sso_session", "sso_start_url", "source_profile", "credential_process", "role_arn")


def authorization(address: Address, environ: Mapping[str, str]) -> str | None:
    """Return the header `Authorization` for requests of HTTP, None where there is none.

    Raises:
        RemoteError: a token or netrc file cannot be used.
    """
    if address.login is not None:
        return _basic(address.login.user, address.login.password)
    token = environ.get(TOKEN, "").strip()
    if token:
        if not token.isascii() or not token.isprintable():
            raise _unusable(f"{TOKEN} has characters that no header may have")
        return f"Bearer {token}"
    return _netrc(address, environ)


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"


def _netrc(address: Address, environ: Mapping[str, str]) -> str | None:
    import netrc

    named = environ.get("NETRC")
    path = Path(named) if named else _home(environ) / ".netrc"
    if not path.is_file():
        return None
    problem = ""
    entry = None
    try:
        if not named and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            problem = "other users can read it"
        else:
            entry = netrc.netrc(path).authenticators(_host(address))
    except OSError as error:
        problem = error.strerror or "it cannot be read"
    except netrc.NetrcParseError as error:
        problem = f"line {error.lineno} is not understood"
    if problem:
        raise _unusable(f"{path}: {problem}")
    return _basic(entry[0], entry[2] or "") if entry else None


def _host(address: Address) -> str:
    host = address.place.rpartition("]")[0].lstrip("[") or address.place.partition(":")[0]
    return host


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("HOME") or "/nonexistent")


def _unusable(text: str) -> RemoteError:
    return RemoteError(text, Failure.SETTINGS)


def s3_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of obstore's S3 store that its own look at the environment lacks.

    Raises:
        RemoteError: the profile does not exist, or cannot be used.
    """
    if any(environ.get(name) for name in _IN_ENVIRONMENT):
        return {}
    named = environ.get("AWS_PROFILE") or environ.get("AWS_DEFAULT_PROFILE")
    name = named or "default"
    profile = _profile(environ, name)
    if not profile:
        if named:
            raise _unusable(f"the profile {name} of AWS has no entry in ~/.aws")
        return {}
    options: dict[str, Any] = {
        option: profile[label] for label, option in _PLACE.items() if label in profile
    }
    if "aws_access_key_id" in profile and "source_profile" not in profile:
        return options | {o: profile[label] for label, o in _STATIC.items() if label in profile}
    if "web_identity_token_file" in profile and "role_arn" in profile:
        return options | {
            "web_identity_token_file": profile["web_identity_token_file"],
            "role_arn": profile["role_arn"],
        }
    if any(label in profile for label in _FOR_BOTO3):
        return options | {"credential_provider": _boto3_provider(name)}
    return options


def _profile(environ: Mapping[str, str], name: str) -> dict[str, str]:
    """Return what both files of AWS say of a profile; the credentials file counts more."""
    home = _home(environ) / ".aws"
    config = Path(environ.get("AWS_CONFIG_FILE") or home / "config")
    credentials = Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials")
    section = name if name == "default" else f"profile {name}"
    return {**_section(config, section), **_section(credentials, name)}


def _section(path: Path, name: str) -> dict[str, str]:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    problem = ""
    try:
        with path.open(encoding="utf-8") as file:
            parser.read_file(file)
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error):
        problem = "it cannot be read"
    if problem:
        raise _unusable(f"{path}: {problem}")
    if not parser.has_section(name):
        return {}
    return {label: value.strip() for label, value in parser.items(name) if value}


def _boto3_provider(name: str) -> Any:
    problem = ""
    try:
        import boto3
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        problem = "needs boto3, which is not installed"
    else:
        try:
            return Boto3CredentialProvider(boto3.Session(profile_name=name))
        except Exception:  # noqa: BLE001 - botocore's errors quote what a profile has
            problem = "gives boto3 no credentials"
    raise RemoteError(
        f"the profile {name} of AWS {problem}",
        Failure.SETTINGS,
        hint="Install boto3, or set the variables that `aws configure export-credentials "
        "--format env` prints.",
    )


def gcs_options(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the options of obstore's Google store that its own look at the environment lacks.

    Raises:
        RemoteError: the credentials are of a type that needs google-auth, and it is missing.
    """
    named = environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    if not named:
        return {}
    kind = ""
    try:
        kind = str(json.loads(Path(named).read_bytes()).get("type", ""))
    except (OSError, ValueError, AttributeError):
        kind = "unreadable"
    if kind == "unreadable":
        raise _unusable("GOOGLE_APPLICATION_CREDENTIALS names no readable file of JSON")
    if kind in ("service_account", "authorized_user"):
        return {}
    problem = ""
    try:
        from obstore.auth.google import GoogleCredentialProvider

        return {"credential_provider": GoogleCredentialProvider()}
    except ImportError:
        problem = "need google-auth and requests, which are not installed"
    except Exception:  # noqa: BLE001 - google-auth's errors quote what a file has
        problem = "cannot be used by google-auth"
    raise RemoteError(
        f"the credentials in $GOOGLE_APPLICATION_CREDENTIALS {problem}",
        Failure.SETTINGS,
        hint="Install google-auth and requests.",
    )
