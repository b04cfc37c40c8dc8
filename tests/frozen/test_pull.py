"""Downloads with the frozen program: from a hub on loopback, over TLS too, cut off, and without a network."""

import shutil
import ssl
import subprocess

import pytest

from tests.cli.pulling import REPO, sized, sound
from tests.frozen.program import names, until
from tests.hub import Fault, Hub
from tests.kit import NOT_PRINTABLE, tiny


@pytest.fixture
def near():
    """A hub with a small model."""
    with Hub() as hub:
        hub.add(REPO, {"tiny-F32.gguf": tiny("dense", mute=NOT_PRINTABLE)})
        yield hub


def test_a_model_is_pulled_and_answers(near, newcomer):
    answer = newcomer.found("pull", REPO, HF_ENDPOINT=near.url)
    assert sound(answer)
    assert answer["files"][0]["sha256"] == near.repos[REPO].sha256("tiny-F32.gguf")
    (name,) = set(names(newcomer.found("list"))) - {"guide"}
    assert newcomer.said("verify", name).startswith("ok ")
    assert newcomer.said("run", name, "Hi", "--max-tokens", "4").strip()


def test_a_killed_download_goes_on_where_it_was(near, newcomer):
    size = 2_000_000
    near.add(REPO, {"tiny-F32.gguf": sized(size)})
    near.fail("store", Fault(pause=0.05, piece=1 << 14))
    run = newcomer.start("pull", REPO, HF_ENDPOINT=near.url)

    def begun():
        return max((path.stat().st_size for path in newcomer.home.rglob("*.incomplete")), default=0)

    until(lambda: begun() > size // 4, 60)
    run.kill()
    run.communicate()
    kept = begun()
    assert kept < size
    near.mend()
    answer = newcomer.found("pull", REPO, HF_ENDPOINT=near.url)
    assert sound(answer)
    assert answer["resumed_bytes"] == kept
    assert [one.range[0] for one in near.requests("store") if one.range][-1] == kept


def test_without_a_network_it_says_so(newcomer):
    said = newcomer.complaint("pull", REPO, HF_ENDPOINT="http://127.0.0.1:9")
    assert "127.0.0.1 is not reachable" in said
    assert "Check the network" in said


def test_certificates_are_checked(newcomer, tmp_path):
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    if shutil.which("openssl") is None:
        pytest.skip("openssl, which makes the certificate, is not installed")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-days", "2", "-subj", "/CN=hub"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        capture_output=True,
        check=True,
    )
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    with Hub(tls=tls) as hub:
        hub.add(REPO, {"tiny-F32.gguf": tiny()})
        assert "certificate" in newcomer.complaint("pull", REPO, HF_ENDPOINT=hub.url).lower()
        assert not hub.seen
        answer = newcomer.found("pull", REPO, HF_ENDPOINT=hub.url, SSL_CERT_FILE=str(certificate))
        assert sound(answer)
