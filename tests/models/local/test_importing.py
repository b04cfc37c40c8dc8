"""Drafts in the folder of models: which are removed."""

import os

from filelock import FileLock

from edgechat.models.local.importing import DRAFT_LOCK, remove_old_drafts


def test_old_drafts_are_removed_but_not_a_folder_that_somebody_works_in(tmp_path):
    abandoned, busy, file = tmp_path / ".a.part", tmp_path / ".b.part", tmp_path / ".c.part"
    for folder in (abandoned, busy):
        folder.mkdir()
        (folder / "imatrix.gguf").touch()
    file.touch()
    with FileLock(busy / DRAFT_LOCK):
        for path in (*tmp_path.glob(".*"), *tmp_path.glob(".*/*")):
            os.utime(path, (1, 1))
        remove_old_drafts(tmp_path)
        assert list(tmp_path.iterdir()) == [busy]
    os.utime(busy, (1, 1))
    remove_old_drafts(tmp_path)
    assert not busy.exists()
