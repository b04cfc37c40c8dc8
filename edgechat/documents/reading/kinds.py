"""Which files are documents, by their names, and which are secrets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

Kind = Literal["text", "markdown", "html", "code", "csv", "notebook", "pdf", "docx", "epub"]

_SUFFIXES: dict[Kind, str] = {
    "text": "txt text log rst adoc asciidoc org tex bib srt vtt nfo",
    "markdown": "md markdown mdown mkd mdx qmd rmd",
    "html": "html htm xhtml",
    "code": """
        ada adb ads agda asm awk bas bash bat bazel bzl c c++ cc cfg cjs cl clj cljs cljc cmake cmd
        coffee conf cpp cr cs csproj css cu cuh cxx d dart desktop diff el elm erl ex exs f f03 f90
        f95 fish fs fsx glsl go gradle graphql groovy h h++ hcl hh hpp hrl hs hxx ini inl ino ipp
        java jl js json json5 jsonc jsonl jsx kt kts less lisp lua m mak makefile mjs mk ml mli mm
        mod nim nix nu pas patch php pl plist pm po pp proto properties ps1 psm1 pug purs py pyi pyx
        r rake rb re rkt rs s sass sbt scala scm scss sh sln sol sql sty sv svelte swift tcl tf toml
        ts tsx typ v vb vhd vhdl vim vue wgsl xml xsd xsl xslt yaml yml zig zsh
    """,
    "csv": "csv tsv tab psv",
    "notebook": "ipynb",
    "pdf": "pdf",
    "docx": "docx docm dotx",
    "epub": "epub",
}
_NAMES: dict[Kind, str] = {
    "text": "readme license licence copying notice authors contributors changelog changes news todo",
    "code": """
        makefile dockerfile containerfile jenkinsfile vagrantfile gemfile rakefile procfile justfile pipfile
        cmakelists.txt codeowners .gitignore .gitattributes .dockerignore .editorconfig
    """,
}
_KINDS_BY_SUFFIX = {suffix: kind for kind, suffixes in _SUFFIXES.items() for suffix in suffixes.split()}
_KINDS_BY_NAME = {name: kind for kind, names in _NAMES.items() for name in names.split()}
# What programs write for programs: lock files, what is minified, maps of sources.
_GENERATED = re.compile(
    r".*(\.lock|[.-]lock\.(json|ya?ml)|npm-shrinkwrap\.json|\.lockb|go\.sum|[.-]min\.\w+|\.bundle\.js|\.map)"
)
_SECRETS = re.compile(
    r"""
    (\.env.*) | (.+\.env) | (\.envrc)
    | (id_(rsa|dsa|ecdsa|ed25519)(_sk)?.*)
    | (.+\.(pem|key|p8|p12|pfx|ppk|jks|keystore|kdbx?|gpg|pgp|ovpn|tfstate|tfvars|keychain))
    | ([._](netrc|pgpass|my\.cnf|npmrc|pypirc|htpasswd|dockercfg|git-credentials|vault-token|boto|s3cfg))
    | (\.?(htpasswd|kubeconfig|shadow|wallet\.dat)) | (\.\w+_history) | (\.?terraformrc)
    | (.*(client|app)[_-]?secrets?.*\.json) | (.*service[_-]?account.*\.json) | (.*credentials?.*\.(json|csv))
    | (.*([._-]|^)(secrets?|tokens?|credentials?|passwords?|passwd|api[_-]?keys?)
       (\.(json|ya?ml|toml|ini|cfg|conf|txt|csv|xml|properties|db|enc))?)
    """,
    re.VERBOSE,
)
_SECRET_FOLDERS = frozenset((".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".password-store"))


def kind_of(path: Path) -> Kind | None:
    """Return what reads a file of this name; None: it is no document, as an image or a lock file."""
    name = path.name.casefold()
    if _GENERATED.fullmatch(name):
        return None
    return _KINDS_BY_NAME.get(name) or _KINDS_BY_SUFFIX.get(Path(name).suffix[1:])


def is_secret(path: Path) -> bool:
    """Return whether a file has keys or passwords, by its name or that of its folder."""
    return bool(_SECRETS.fullmatch(path.name.casefold())) or not _SECRET_FOLDERS.isdisjoint(path.parts[:-1])
