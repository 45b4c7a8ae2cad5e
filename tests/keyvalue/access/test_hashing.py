"""Hashes of secrets: both forms, and words that are none."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quorate.keyvalue.access.hashing import (
    MAX_SECRET_BYTES,
    UNUSABLE,
    hash_secret,
    is_hash,
    is_slow,
    matches,
    shown,
)


def sha(secret: bytes) -> bytes:
    return b"#" + hashlib.sha256(secret).hexdigest().encode()


def test_a_secret_matches_its_hash_only() -> None:
    word = hash_secret(b"secret", b"0123456789abcdef")
    assert word.startswith(b"$scrypt$ln=14,r=8,p=1$")
    assert is_hash(word)
    assert is_slow(word)
    assert matches(b"secret", word)
    assert not matches(b"Secret", word)
    assert hash_secret(b"secret", b"another salt 16b") != word


def test_a_known_hash_of_another_program() -> None:
    # The third vector of RFC 7914, cut to 32 bytes.
    word = b"$scrypt$ln=14,r=8,p=1$U29kaXVtQ2hsb3JpZGU$cCO9yzr9c0hGHAbNgf04664LSYpjhkDYBiMetM5IzvI"
    made = hash_secret(b"pleaseletmein", b"SodiumChloride")
    expected = bytes.fromhex("7023bdcb3afd7348461c06cd81fd38ebfda8fbba904f8e3ea9b543f6545da1f2")
    assert hashlib.scrypt(
        b"pleaseletmein", salt=b"SodiumChloride", n=16384, r=8, p=1, dklen=64, maxmem=1 << 26
    ).startswith(expected)
    assert is_hash(made)
    assert matches(b"pleaseletmein", made)
    assert is_hash(word)


@given(st.binary(max_size=64))
def test_redis_own_hash(secret: bytes) -> None:
    word = sha(secret)
    assert is_hash(word)
    assert not is_slow(word)
    assert matches(secret, word)
    assert not matches(secret + b"x", word)
    assert shown(word) == word[1:]


@pytest.mark.parametrize(
    "word",
    [
        b"",
        b"#",
        b"#" + b"A" * 64,
        b"#" + b"a" * 63,
        b"#" + b"a" * 65,
        b"a" * 64,
        b"$scrypt$",
        UNUSABLE.replace(b"ln=14", b"ln=17"),
        UNUSABLE.replace(b"ln=14", b"ln=0"),
        UNUSABLE.replace(b"r=8", b"r=9"),
        UNUSABLE.replace(b"p=1", b"p=5"),
        UNUSABLE.replace(b"p=1", b"p=0"),
        UNUSABLE[:-1],
        UNUSABLE + b"A",
        UNUSABLE + b"\n",
        UNUSABLE[:-1] + b"B",  # another spelling of the same bytes
    ],
)
def test_words_that_are_no_hash(word: bytes) -> None:
    assert not is_hash(word)


def test_a_long_secret_is_wrong() -> None:
    secret = b"x" * (MAX_SECRET_BYTES + 1)
    assert not matches(secret, sha(secret))
    assert is_hash(UNUSABLE)
    assert not matches(b"", UNUSABLE)
