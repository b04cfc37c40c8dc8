"""Startup hook of the packaged program: gives the programs that it starts the user's own libraries.

On Linux, PyInstaller's loader points LD_LIBRARY_PATH at our libraries. This process has already read it;
a browser opened for a link must not inherit it. Our own child processes start through the loader, which
must set the variable again: without PYINSTALLER_RESET_ENVIRONMENT, what it left in the environment would
make it believe that it has done so already.
"""

import os

_NAME = "LD_LIBRARY_PATH"
_users = os.environ.pop(f"{_NAME}_ORIG", None)
if _users is not None:
    os.environ[_NAME] = _users
else:
    os.environ.pop(_NAME, None)
os.environ["PYINSTALLER_RESET_ENVIRONMENT"] = "1"
