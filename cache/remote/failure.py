"""What a remote store can fail of, in few kinds, each with what to do next.

The libraries below put addresses, headers and answers of servers into their messages, and those may
hold credentials. So nothing of their text is shown: an error of ours is made of words from here,
numbers, and names that match a pattern, and has no other exception behind it.
"""

from __future__ import annotations

import re
from enum import StrEnum

from pallasc.errors import ToolError


class Failure(StrEnum):
    """The kinds of failures; what follows from each is in `cache/remote/guard.py`."""

    MISSING = "missing"
    REFUSED = "refused"
    BUSY = "busy"
    BROKEN = "broken"
    TORN = "torn"
    UNREACHABLE = "unreachable"
    SLOW = "slow"
    NO_RANGES = "no ranges"
    TOO_LARGE = "too large"
    UNSUPPORTED = "unsupported"
    SETTINGS = "settings"


_HINTS = {
    Failure.MISSING: "Check the address; `pallasc cache push` makes what is missing.",
    Failure.REFUSED: "Check the credentials and what they may do, and the address.",
    Failure.BUSY: "Try again later, or ask for a higher limit of requests.",
    Failure.BROKEN: "Try again; if it stays, look at the server's own log.",
    Failure.TORN: "Try again; if it stays, look at what lies between here and the server.",
    Failure.UNREACHABLE: "Check the address, the network, the certificate and any proxy.",
    Failure.SLOW: "Try again later, or allow more time with --timeout.",
    Failure.NO_RANGES: "Put a server there that answers requests for ranges.",
    Failure.TOO_LARGE: "Look at what put it there: pallasc writes no object of that size.",
    Failure.UNSUPPORTED: "Name a remote of another kind.",
    Failure.SETTINGS: "Check the settings and credentials of the remote.",
}


class RemoteError(ToolError):
    """A remote store did not do what was asked.

    Attributes:
        failure: of what kind.
    """

    def __init__(self, message: str, failure: Failure, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint or _HINTS[failure])
        self.failure = failure


_STATUS = re.compile(r"status code: (\d{3})\b|\bstatus: (\d{3})\b", re.ASCII)
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>", re.ASCII)
_CERTIFICATE = re.compile(r"invalid peer certificate|InvalidCertificate|certificate", re.ASCII)
_CERTIFICATE_FAULT = re.compile(
    r"\b(UnknownIssuer|Expired|NotValidForName|NotValidYet|BadSignature|Revoked|BadEncoding"
    r"|CaUsedAsEndEntity)\b"
)
_WORDS = {
    400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 408: "Request "
    "Timeout", 409: "Conflict", 411: "Length Required", 412: "Precondition Failed", 413: "Payload "
    "Too Large", 429: "Too Many Requests", 500: "Internal Server Error", 501: "Not Implemented",
    502: "Bad Gateway", 503: "Service Unavailable", 504: "Gateway Timeout", 507: "Insufficient "
    "Storage",
}  # fmt: skip
_NO_BUCKET = {"NoSuchBucket": "bucket", "ContainerNotFound": "container"}
# Of a library's text: what it says, the failure, what we say. The first that is found counts.
_SIGNS = (
    ("Received non-partial response", Failure.NO_RANGES, "ranges of objects are not answered"),
    ("RangeNotSupported", Failure.NO_RANGES, "ranges of objects are not answered"),
    ("MissingContentLength", Failure.BROKEN, "the answer has no Content-Length"),
    ("ConnectionRefused", Failure.UNREACHABLE, "the connection is refused"),
    ("dns error", Failure.UNREACHABLE, "the host's name cannot be resolved"),
    ("failed to lookup address", Failure.UNREACHABLE, "the host's name cannot be resolved"),
    ("HostUnreachable", Failure.UNREACHABLE, "the host cannot be reached"),
    ("NetworkUnreachable", Failure.UNREACHABLE, "the network cannot be reached"),
    ("IncompleteBody", Failure.TORN, "the answer ended early"),
    ("ConnectionReset", Failure.BROKEN, "the connection was reset"),
    ("TimedOut", Failure.SLOW, "no answer came in time"),
    ("Timeout", Failure.SLOW, "no answer came in time"),
    ("error decoding response body", Failure.TORN, "the answer cannot be decoded"),
    ("request or response body error", Failure.TORN, "the answer broke off"),
    ("InstanceCredential", Failure.REFUSED, "there are no credentials"),
    ("MissingCredential", Failure.REFUSED, "there are no credentials"),
    ("kind: Connect", Failure.UNREACHABLE, "no connection can be made"),
    ("kind: Interrupted", Failure.BROKEN, "the connection broke off"),
    ("BadScheme", Failure.SETTINGS, "the endpoint's address is not usable"),
)


def of_status(status: int) -> Failure:
    """Return the kind of failure that an HTTP status means."""
    if status in (404, 410):
        return Failure.MISSING
    if status in (401, 403, 407):
        return Failure.REFUSED
    if status in (429, 503, 507):
        return Failure.BUSY
    if status == 413:
        return Failure.TOO_LARGE
    if status in (405, 501):
        return Failure.UNSUPPORTED
    return Failure.SLOW if status in (408, 504) else Failure.BROKEN


def missing(text: str, action: str) -> RemoteError:
    """Return the error for what is not there: an object, or the whole bucket or container.

    Args:
        text: as of `translated`.
        action: as of `translated`.
    """
    code = _CODE.search(text)
    if code and code[1] in _NO_BUCKET:
        why = f"there is no such {_NO_BUCKET[code[1]]}"
        hint = "Check the address, and what names the server, such as AWS_ENDPOINT_URL."
        return RemoteError(f"{action}: {why}", Failure.SETTINGS, hint=hint)
    return RemoteError(f"{action}: the server answers 404 Not Found", Failure.MISSING)


def translated(text: str, action: str) -> RemoteError:
    """Return the error for what a library said; nothing of its text is in it but known names.

    Args:
        text: the library's message and all that it says for finding mistakes.
        action: what was tried and where, without credentials.
    """
    match = _STATUS.search(text)
    if match:
        status = int(match[1] or match[2])
        if status == 404:
            return missing(text, action)
        code = _CODE.search(text)
        words = " ".join(filter(None, [str(status), _WORDS.get(status, "")]))
        why = f"the server answers {words}" + (f" ({code[1]})" if code else "")
        hint = "Make the folder of the address on the server." if status == 409 else None
        return RemoteError(f"{action}: {why}", of_status(status), hint=hint)
    if _CERTIFICATE.search(text):
        fault = _CERTIFICATE_FAULT.search(text)
        why = "the server's certificate is not valid" + (f" ({fault[1]})" if fault else "")
        hint = "Name the certificate of its authority in SSL_CERT_FILE."
        return RemoteError(f"{action}: {why}", Failure.UNREACHABLE, hint=hint)
    for sign, failure, why in _SIGNS:
        if sign in text:
            return RemoteError(f"{action}: {why}", failure)
    return RemoteError(f"{action}: the request failed", Failure.BROKEN)
