"""Which files are documents, and which are secrets."""

from pathlib import Path

import pytest

from edgechat.documents.reading.reader import is_secret, kind_of


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("text", "a.txt A.TXT a.log a.rst README LICENSE a.b.tex notes.org"),
        ("markdown", "a.md README.md a.markdown a.MDX"),
        ("html", "a.html a.htm a.xhtml"),
        (
            "code",
            "a.py a.c a.cpp a.rs a.json a.yaml pyproject.toml Makefile Dockerfile .gitignore "
            "CMakeLists.txt a.js",
        ),
        ("csv", "a.csv a.tsv"),
        ("pdf", "a.pdf A.PDF"),
        ("docx", "a.docx"),
        ("epub", "a.epub"),
        (
            None,
            "a.png a.svg a.zip a.exe a.so a.gguf a.doc a.bin a.pyc a.sqlite a a.unknown .hidden .md "
            "package-lock.json pnpm-lock.yaml uv.lock Cargo.lock go.sum jquery.min.js style.min.css "
            "app.js.map",
        ),
    ],
)
def test_kinds(kind, names):
    found = {name: kind_of(Path("folder") / name) for name in names.split()}
    assert found == dict.fromkeys(names.split(), kind)


def test_secrets():
    secret = (
        ".env .env.local prod.env .envrc id_rsa id_rsa.pub id_ed25519 server.pem Server.KEY a.p12 a.pfx "
        "a.kdbx .netrc _netrc .pgpass .npmrc .pypirc .git-credentials credentials credentials.json "
        "aws-credentials.csv token token.json .token github_token.txt secrets.yaml app.secrets.toml "
        "passwords.txt password.csv .htpasswd client_secret_1.json service-account.json .bash_history "
        "terraform.tfstate my.tfvars api_key.txt kubeconfig"
    )
    fine = (
        "environment.md env.py keys.md monkey.txt token.py tokenizer.json tokens.md secrets.py "
        "credentials.rst password.go passwords.html secretary.txt a.keynote rsa.py history.txt"
    )
    assert [name for name in secret.split() if not is_secret(Path("folder") / name)] == []
    assert [name for name in fine.split() if is_secret(Path("folder") / name)] == []
    assert is_secret(Path("home/.ssh/config"))
    assert is_secret(Path("home/.aws/config"))
    assert not is_secret(Path("home/ssh/config"))
