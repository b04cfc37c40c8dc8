"""edgechat with workers that know scripts; it runs by `tests.scripted.COMMAND`, and so do its children."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # -P keeps the present folder out

from edgechat.__main__ import ROLES, main
from edgechat.base.process import spawn
from tests.scripted import PROGRAM

if __name__ == "__main__":
    spawn.PROGRAM = PROGRAM
    ROLES["engine"] = "tests.scripted.worker"
    main()
