"""Startup hook of the packaged program: makes sure that other programs do not load our libraries.

On Linux, PyInstaller's loader points LD_LIBRARY_PATH at our libraries. This process has already read the
variable, and a browser opened for a link must not inherit it. Our own child processes start through the
loader, which has to set the variable again: PYINSTALLER_RESET_ENVIRONMENT keeps it from concluding, from what
it left in the environment, that it has already done so.
"""

import os

_NAME = "LD_LIBRARY_PATH"
_users = os.environ.pop(f"{_NAME}_ORIG", None)
if _users is not None:
    os.environ[_NAME] = _users
else:
    os.environ.pop(_NAME, None)
os.environ["PYINSTALLER_RESET_ENVIRONMENT"] = "1"
