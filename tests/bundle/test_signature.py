"""Signatures of several keys, forged ones, and the texts of keys."""

import pytest

from pallasc.errors import CorruptError, SpecError
from pallasc.specs.bundle.bundle import open_bundle
from pallasc.specs.bundle.signature import (
    Signature,
    generate_key,
    pack_signatures,
    parse_private_key,
    parse_public_keys,
    parse_signatures,
    public_key,
    sign,
)
from pallasc.specs.bundle.verify import signed

ALICE, BOB = generate_key(), generate_key()
TRUST_ALICE, TRUST_BOB = (public_key(ALICE),), (public_key(BOB),)


def test_several_may_sign_in_any_order_and_signing_again_changes_nothing(small: bytes) -> None:
    both = signed(signed(small, ALICE), BOB)
    assert both == signed(signed(signed(small, BOB), ALICE), BOB)
    bundle = open_bundle(both)
    assert len(bundle.signatures) == 2
    assert bundle.check_signatures(TRUST_BOB) == TRUST_BOB
    assert set(bundle.check_signatures(TRUST_ALICE + TRUST_BOB)) == {*TRUST_ALICE, *TRUST_BOB}


def test_a_forged_signature_is_seen(small: bytes) -> None:
    root = bytes.fromhex(open_bundle(small).root)
    forged = Signature(TRUST_ALICE[0].id, root, sign(root, BOB).signature)
    bundle = open_bundle(small + pack_signatures([forged]))
    with pytest.raises(CorruptError, match="is not valid; it was forged or damaged"):
        bundle.check_signatures(TRUST_ALICE)
    wrong = Signature(TRUST_BOB[0].id, root, bytes(64))
    bundle = open_bundle(small + pack_signatures([sign(root, ALICE), wrong]))
    assert bundle.check_signatures(TRUST_ALICE) == TRUST_ALICE
    with pytest.raises(CorruptError, match="is not valid"):
        bundle.check_signatures(TRUST_ALICE + TRUST_BOB)


def test_signatures_of_another_form_are_refused(small: bytes) -> None:
    good = sign(bytes(32), ALICE)
    data = pack_signatures([good])
    for wrong in (data[:-1], b"x" + data, b"rsa-4096" + data[8:], data + data):
        with pytest.raises(CorruptError, match="signature"):
            parse_signatures(wrong)
    assert parse_signatures(data) == (good,)
    many = [Signature(f"{n:064x}", bytes(32), bytes(64)) for n in range(65)]
    with pytest.raises(SpecError, match="at most 64"):
        pack_signatures(many)


@pytest.mark.parametrize(
    "line", ["ed25519:", "ed25519:AAAA", "rsa:" + "A" * 44, "A" * 44, "ed25519:?"]
)
def test_a_line_that_is_no_key_is_named(line: str) -> None:
    with pytest.raises(SpecError, match=r"^keys:2: ") as caught:
        parse_public_keys(f"# comment\n{line}\n", "keys")
    assert caught.value.exit_code == 2


def test_a_private_key_of_another_form_is_refused() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    other = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(SpecError, match="not an Ed25519 key"):
        parse_private_key(other, "key.pem")
