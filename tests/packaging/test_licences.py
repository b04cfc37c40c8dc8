"""Everything inside a frozen program comes with its licence's text, and what has none is not shipped."""

import re
import shutil
import sys
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parents[2]

needs_debian = pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="asks Debian's packages")


@pytest.fixture(scope="module")
def licences(script):
    return script("licences")


@pytest.fixture
def frozen(tmp_path):
    """A function that makes a frozen folder of these modules and files, as PyInstaller lays it out."""
    writers = pytest.importorskip("PyInstaller.archive.writers")

    def make(modules, files):
        folder = tmp_path / "edgechat-1-linux"
        (folder / "_internal").mkdir(parents=True)
        (folder / "LICENSE").write_text("not an archive")
        code = compile("", "nowhere.py", "exec")
        pyz = tmp_path / "PYZ.pyz"
        entries = [(name, "nowhere.py", "PYMODULE") for name in modules]
        writers.ZlibArchiveWriter(str(pyz), entries, code_dict=dict.fromkeys(modules, code))
        script = tmp_path / "main.py"
        script.write_text("")
        hook = "pyi_rth_inspect"
        toc = [
            ("PYZ.pyz", str(pyz), False, "z"),
            (hook, str(script), False, "s"),
            ("edgechat", str(script), False, "s"),
        ]
        writers.CArchiveWriter(str(folder / "edgechat"), toc, "libpython3.11.so")
        for name, data in files.items():
            path = folder / "_internal" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder

    return make


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A function that installs a distribution of one module, with these files of licences."""

    def install(name, **texts):
        site = tmp_path / "site"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_text("")
        files = {f"{info.name}/licenses/{file}": text for file, text in texts.items()}
        for file, text in files.items():
            (site / file).parent.mkdir(exist_ok=True)
            (site / file).write_text(text)
        (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n")
        record = [*files, f"{name}.py", f"{info.name}/METADATA", f"{info.name}/RECORD"]
        (info / "RECORD").write_text("".join(f"{file},,\n" for file in record))
        monkeypatch.syspath_prepend(site)
        return metadata.distribution(name)

    return install


def needed(name):
    """Return the names of what a distribution needs on this machine, and of what that needs."""
    found = set()
    left = [name]
    while left:
        for requirement in metadata.requires(left.pop()) or ():
            wanted = re.match(r"[\w.-]+", requirement)[0].lower()
            if "extra ==" in requirement or wanted in found:
                continue
            try:
                metadata.distribution(wanted)
            except metadata.PackageNotFoundError:
                continue  # for another system
            found.add(wanted)
            left.append(wanted)
    return found


def test_all_that_edgechat_needs_has_a_text_a_name_and_an_address(licences):
    names = needed("edgechat")
    assert {"textual", "llama-cpp-python", "numpy", "httpx2"} <= names
    for name in names:
        entry = licences.of_distribution(metadata.distribution(name))
        assert len(entry.text) > 200, name
        assert entry.licence, name
        assert entry.homepage.startswith("http"), name


def test_what_is_written_is_whole(licences, frozen, tmp_path):
    folder = frozen(
        ["json", "msgspec", "jinja2.nodes", "edgechat.base.text"], {"edgechat/base/data/models.toml": b""}
    )
    names = licences.write_licences(folder, tmp_path / "LICENCES.txt")
    assert names == ["edgechat", "Python", "Jinja2", "msgspec", "pyinstaller"]
    text = (tmp_path / "LICENCES.txt").read_text()
    for name in names:
        assert re.search(rf"^=+\n{name} \d.*\n", text, re.MULTILINE), name
    assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in text
    assert "Copyright 2007 Pallets" in text
    assert "GPL-2.0-or-later WITH Bootloader-exception" in text
    assert (ROOT / "LICENSE").read_text().strip() in text


def test_llama_cpp_is_told_beside_the_wheel_that_contains_it(licences, frozen, tmp_path):
    folder = frozen([], {"llama_cpp/lib/libllama.so": b"", "llama_cpp/lib/libggml-cpu-x64.so": b""})
    names = licences.write_licences(folder, tmp_path / "LICENCES.txt")
    assert {"llama_cpp_python", "llama.cpp and ggml"} < set(names)
    text = (tmp_path / "LICENCES.txt").read_text()
    assert "The ggml authors" in text
    assert "Andrei Betlen" in text


def test_what_has_no_text_stops_it_and_is_named(licences, frozen, installed, tmp_path):
    installed("withouttext")
    installed("withtext", NOTICE="Copyright somebody")
    folder = frozen(["withouttext", "withtext"], {})
    with pytest.raises(licences.MissingLicence, match=r"withouttext 1\.0") as raised:
        licences.write_licences(folder, tmp_path / "LICENCES.txt")
    assert "withtext 1.0" not in str(raised.value)
    assert not (tmp_path / "LICENCES.txt").exists()


@pytest.mark.parametrize(
    ("modules", "files"),
    [(["strange.thing"], {}), ([], {"strange.bin": b""}), ([], {"strange.framework/Info.plist": b""})],
)
def test_what_nobody_wrote_stops_it(script, frozen, modules, files):
    origins = script("origins")
    with pytest.raises(origins.UnknownOrigin, match="strange"):
        origins.origins(frozen(modules, files))


def test_a_macs_framework_is_pythons_own(script, frozen):
    """As PyInstaller lays it out: a library without a suffix, and what its signature needs."""
    origins = script("origins")
    library, about = "Versions/3.13/Python", "Versions/3.13/Resources/Info.plist"
    found = origins.origins(frozen([], {f"Python.framework/{name}": b"" for name in (library, about)}))
    assert found.distributions == {origins.OWN, origins.BOOTLOADER}
    assert found.of_system == set()


@pytest.fixture
def standalone(monkeypatch):
    """A Python that says it is of python-build-standalone."""
    said = sysconfig.get_config_var
    monkeypatch.setattr(
        sysconfig, "get_config_var", lambda name: 1 if name == "PYTHON_BUILD_STANDALONE" else said(name)
    )


@pytest.mark.usefixtures("standalone")
def test_what_a_standalone_python_links_in_is_told(licences, frozen, tmp_path):
    names = licences.write_licences(frozen([], {}), tmp_path / "LICENCES.txt")
    inside = ["bzip2", "Expat", "libedit", "libffi", "libuuid", "mpdecimal", "ncurses", "OpenSSL", "SQLite"]
    inside += ["xz (liblzma)", "zlib", *(["zstd"] if sys.version_info >= (3, 14) else [])]
    assert names == ["edgechat", "Python", *inside, "pyinstaller"]
    text = (tmp_path / "LICENCES.txt").read_text()
    for words in (
        "Julian R Seward",
        "2001-2017 Expat maintainers",
        "The Regents of the University of California",
        "1996-2011 Anthony Green",
        "Theodore Ts'o",
        "Stefan Krah",
        "Thomas E. Dickey",
        "The OpenSSL Project Authors",
        "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION",
        "May you find forgiveness",
        "with or without fee",
        "Jean-loup Gailly and Mark Adler",
    ):
        assert words in text


@pytest.mark.usefixtures("standalone")
def test_a_standalone_pythons_berkeley_db_is_not_shipped(licences, frozen, tmp_path):
    folder = frozen([], {"python3.13/lib-dynload/_dbm.cpython-313-x86_64-linux-gnu.so": b""})
    with pytest.raises(licences.MissingLicence, match=r"Berkeley DB, which is in _dbm\.cpython-313"):
        licences.write_licences(folder, tmp_path / "LICENCES.txt")


@pytest.mark.parametrize(
    ("of_python", "of_system", "inside"),
    [
        ({"_ssl.cpython-313-darwin.so", "libssl.3.dylib", "libcrypto.3.dylib"}, set(), ["OpenSSL"]),
        ({"_ctypes.pyd", "libffi-8.dll", "sqlite3.dll", "zlib1.dll"}, set(), ["libffi", "SQLite", "zlib"]),
        ({"_curses.cpython-313-darwin.so", "libncursesw.6.dylib"}, set(), ["ncurses"]),
        ({"_decimal.cpython-311-x86_64-linux-gnu.so", "pyexpat.pyd"}, set(), ["Expat", "mpdecimal"]),
        ({"_decimal.cpython-313-aarch64-linux-gnu.so", "pyexpat.so"}, {"libmpdec.so.3"}, ["Expat"]),
        ({"pyexpat.cpython-313-x86_64-linux-gnu.so"}, {"libexpat.so.1"}, []),
        ({"_ssl.cpython-311-x86_64-linux-gnu.so", "zlib.cpython-311.so"}, {"libssl.so.3", "libz.so.1"}, []),
    ],
)
def test_what_other_pythons_have_inside(script, monkeypatch, of_python, of_system, inside):
    """Libraries beside them, and those of their own sources that do not come from the system."""
    monkeypatch.setattr(sys, "builtin_module_names", ("sys",))
    found = script("inside_python").libraries_inside(of_python, of_system)
    assert [one.name for one in found] == inside


def test_rust_crates_are_listed_with_their_licences(licences):
    text = licences.of_distribution(metadata.distribution("hf-xet")).text
    _, _, crates = text.partition("Rust crates in its library:")
    assert re.search(r"^  tokio \d[\w.]*: MIT$", crates, re.MULTILINE)
    assert all(re.fullmatch(r"  \S+ \S+: \S.*", line) for line in crates.splitlines() if line)


def test_what_is_told_by_an_address_is_said(licences, frozen, tmp_path):
    names = licences.write_licences(frozen([], {"libcublas.so.12": b""}), tmp_path / "LICENCES.txt")
    assert "NVIDIA CUDA Runtime" in names
    introduction = " ".join((tmp_path / "LICENCES.txt").read_text().split("  edgechat ")[0].split())
    assert "NVIDIA (CUDA, with cuBLAS) and Microsoft (Visual C++)" in introduction
    assert "told by the address of their terms" in introduction


@needs_debian
def test_libraries_of_the_system_come_with_their_packages_words(licences, frozen, tmp_path):
    names = licences.write_licences(frozen([], {"libstdc++.so.6": b"", "libz.so.1": b""}), tmp_path / "L")
    assert [name for name in names if "Debian" in name] == ["libstdc++6 (Debian)", "zlib1g (Debian)"]
    text = (tmp_path / "L").read_text()
    assert "Taken from the system: libstdc++.so.6." in text
    assert "GCC Runtime Library Exception" in " ".join(text.split())
    assert "The text of GPL-3" in names
    assert "GNU GENERAL PUBLIC LICENSE\n                       Version 3" in text


def test_a_library_without_a_package_stops_it(licences, frozen, tmp_path):
    with pytest.raises(licences.MissingLicence, match=r"libnonesuch\.so\.7"):
        licences.write_licences(frozen([], {"libnonesuch.so.7": b""}), tmp_path / "LICENCES.txt")


@pytest.mark.parametrize("name", ["vcruntime140.dll", "libcublas.so.12", "cudart64_12.dll"])
def test_what_may_be_shipped_by_its_makers_terms(script, name):
    assert script("system_libraries").package_of(name).homepage.startswith("https://")


def test_the_scripts_say_how_they_are_run(licences, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["licences.py"])
    assert licences.main() == 2
    assert "usage" in capsys.readouterr().err
