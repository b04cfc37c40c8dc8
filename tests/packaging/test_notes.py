"""What a release is announced with, and the check before it."""

import sys
from pathlib import Path

import pytest

from edgechat import __version__

ROOT = Path(__file__).parents[2]
CHANGELOG = """# Changelog

## 0.2.0 (2027-01-31)

- One thing, which
  takes two lines.
- Another:
  - with a part

## 0.1.0

- The first.

## 0.0.1
"""


@pytest.fixture
def notes():
    """The module `notes`, which lies outside the package."""
    folder = str(ROOT / "packaging" / "release")
    sys.path.insert(0, folder)
    try:
        import notes
    finally:
        sys.path.remove(folder)
    return notes


def test_the_section_of_a_version(notes):
    assert notes.section(CHANGELOG, "0.1.0") == "- The first."
    told = "- One thing, which takes two lines.\n- Another:\n  - with a part"
    assert notes.section(CHANGELOG, "0.2.0") == told


@pytest.mark.parametrize("version", ["0.0.1", "0.2", "0.1.1", "1.0"])
def test_a_version_of_which_nothing_is_written(notes, version):
    with pytest.raises(SystemExit, match=rf"nothing under '## {version}'"):
        notes.section(CHANGELOG, version)


def test_the_version_is_edgechats(notes):
    assert notes.version((ROOT / "edgechat" / "__init__.py").read_text(encoding="utf-8")) == __version__


def test_a_tag_that_is_not_the_version(notes, monkeypatch):
    monkeypatch.setattr("sys.argv", ["notes.py", f"v{__version__}.1"])
    with pytest.raises(SystemExit, match=f"edgechat/__init__.py says {__version__}"):
        notes.main()
