"""edgechat with workers that understand scripts; `tests.scripted.COMMAND` and its children run it."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))  # -P leaves out the current folder

from edgechat.__main__ import ROLES, main
from edgechat.base.process import spawn
from tests.scripted import PROGRAM

if __name__ == "__main__":
    spawn.PROGRAM = PROGRAM
    ROLES["engine"] = "tests.scripted.worker"
    main()
