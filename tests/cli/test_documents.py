"""`edgechat docs`, as somebody types it."""

import pytest

from tests.cli.transcripts import transcript

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("measured", "handbook")]


@pytest.fixture
def handbook(tmp_path):
    (tmp_path / "handbook").mkdir()
    (tmp_path / "handbook" / "guide.md").write_text("# Lamps\nThe lamp burns oil.\n")
    (tmp_path / "handbook" / "notes.txt").write_text("Ships pass at night.\x1b[2J\n")


test_what_is_printed = transcript("documents.txt")
