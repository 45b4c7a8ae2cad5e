"""Certificates and keys in files: what is found wrong when they are loaded, and in which words."""

# pyright: reportPrivateUsage=false

import itertools
import ssl
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from quorate.errors import ConfigurationError
from quorate.transport.identity import Purpose
from quorate.transport.tls import Material, TlsFiles, load_material
from quorate.transport.tls.files import _context
from tests.support.certificates import NOW, authority, pem_of, uri, write


def load(files: TlsFiles) -> Material:
    return load_material(files, cluster="test", purposes=(Purpose.MEMBER,), name="2")


def refused(files: TlsFiles, *words: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(files)
    assert "\n" not in str(caught.value)
    for word in words:
        assert word in str(caught.value)


def test_files_that_fit_are_loaded(tmp_path: Path) -> None:
    made = load(authority().write(tmp_path, uri(2)))
    assert str(made.identity) == "quorate://test/member/2"
    days = (made.expires_ms / 1000 - NOW.timestamp()) / 86400
    assert 29.9 < days <= 30


def test_a_chain_up_to_the_second_ca_of_the_file_is_loaded(tmp_path: Path) -> None:
    files = authority("new CA").write(tmp_path, uri(2))
    files.ca.write_bytes(authority().pem + files.ca.read_bytes())
    assert load(files).identity.member_id == 2


@pytest.mark.parametrize("name", ["certificate", "key", "ca"])
def test_a_missing_file_is_named(tmp_path: Path, name: str) -> None:
    files = authority().write(tmp_path, uri(2))
    path: Path = getattr(files, name)
    path.unlink()
    refused(files, f'security.{name} = "{path}"', "No such file")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_key_that_others_may_read_is_refused(tmp_path: Path, mode: int) -> None:
    files = authority().write(tmp_path, uri(2))
    files.key.chmod(mode)
    refused(files, "security.key", f"mode is {mode:04o}", f"chmod 600 {files.key}")


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    files = authority().write(tmp_path, uri(2))
    files.key.write_bytes(pem_of(ec.generate_private_key(ec.SECP256R1())))
    refused(files, "security.key", "is not the key of", str(files.certificate))


def test_a_key_with_a_password_is_refused_without_asking_for_it(tmp_path: Path) -> None:
    files = authority().write(tmp_path, uri(2))
    files.key.write_bytes(pem_of(ec.generate_private_key(ec.SECP256R1()), "secret"))
    refused(files, "security.key", "password")


@pytest.mark.parametrize("name", ["certificate", "key", "ca"])
def test_a_file_with_other_contents_is_refused(tmp_path: Path, name: str) -> None:
    files = authority().write(tmp_path, uri(2))
    getattr(files, name).write_text("no PEM\n")
    refused(files, "security.ca" if name == "ca" else "security.certificate", "PEM")


def test_a_certificate_of_another_ca_is_refused(tmp_path: Path) -> None:
    files = authority("other CA").write(tmp_path, uri(2))
    files.ca.write_bytes(authority().pem)
    refused(files, "security.certificate", "unable to get local issuer certificate", "ca.crt")


def test_a_certificate_that_is_its_own_ca_is_refused(tmp_path: Path) -> None:
    files = authority().write(tmp_path, uri(2))
    own = authority("own CA")
    write(tmp_path, own.pem, pem_of(own.key), authority().pem)
    refused(files, "security.certificate", "self-signed")


@pytest.mark.parametrize(
    ("begins", "ends", "words"),
    [(-2, -1, "certificate has expired"), (1, 2, "certificate is not yet valid")],
)
def test_a_certificate_of_another_time_is_refused(
    tmp_path: Path, begins: int, ends: int, words: str
) -> None:
    files = authority().write(
        tmp_path,
        uri(2),
        begins=NOW + timedelta(days=begins),
        ends=NOW + timedelta(days=ends),
    )
    refused(files, "security.certificate", words)


@pytest.mark.parametrize(
    "names",
    [
        [uri(3)],
        [uri(2, cluster="other")],
        [uri(2, Purpose.READER)],
        [uri(2, Purpose.CLIENT)],
    ],
)
def test_the_certificate_of_someone_else_is_refused(tmp_path: Path, names: list[str]) -> None:
    files = authority().write(tmp_path, *names)
    refused(files, f"it is for {names[0]}: expected one for {uri(2)}")


@pytest.mark.parametrize(
    "names", [[], ["https://example.org"], [uri(2), uri(3)], ["quorate://test/member/02"]]
)
def test_a_certificate_without_one_good_name_is_refused(tmp_path: Path, names: list[str]) -> None:
    refused(authority().write(tmp_path, *names), "security.certificate", "expected")


def test_any_name_will_do_if_none_is_expected(tmp_path: Path) -> None:
    files = authority().write(tmp_path, uri("spark", Purpose.READER))
    made = load_material(files, cluster="test", purposes=(Purpose.READER,))
    assert made.identity.name == "spark"


def test_the_stamp_changes_with_each_file(tmp_path: Path) -> None:
    files = authority().write(tmp_path, uri(2))
    stamps = {files.stamp()}
    for path in (files.certificate, files.key, files.ca):
        path.write_bytes(path.read_bytes() + b"\n")
        stamps.add(files.stamp())
    files.ca.unlink()
    stamps.add(files.stamp())
    assert len(stamps) == 5


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "replaced"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_files_that_change_while_they_are_read_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at: int,
    gone: bool,  # noqa: FBT001
) -> None:
    files = authority().write(tmp_path, uri(2))
    other = authority("new CA").pem
    made, count = _context, itertools.count(1)

    def context(kind: int, files: TlsFiles) -> ssl.SSLContext:
        if next(count) == at:
            if gone:
                files.ca.unlink()
            else:
                files.ca.write_bytes(authority().pem + other)
        return made(kind, files)

    monkeypatch.setattr("quorate.transport.tls.files._context", context)
    with pytest.raises(ConfigurationError, match="while it was read"):
        load_material(
            files, cluster="test", purposes=(Purpose.MEMBER,), name="2", clients="required"
        )
