"""Run by the packaged program before all else: give programs that it starts the user's own libraries.

On Linux PyInstaller's loader points LD_LIBRARY_PATH at our libraries. It has been read by now; a browser that
opens a link must not find them there. Children of ours start through the loader, which is told to set it
anew: it would take what it left in the environment for a sign that it has.
"""

import os

_NAME = "LD_LIBRARY_PATH"
_users = os.environ.pop(f"{_NAME}_ORIG", None)
if _users is not None:
    os.environ[_NAME] = _users
else:
    os.environ.pop(_NAME, None)
os.environ["PYINSTALLER_RESET_ENVIRONMENT"] = "1"
