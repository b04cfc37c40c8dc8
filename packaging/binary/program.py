"""The script that PyInstaller freezes: `edgechat`, and every child process of it."""

from edgechat.__main__ import main

main()
