"""The script that PyInstaller freezes: runs `edgechat` and all its child processes."""

from edgechat.__main__ import main

main()
