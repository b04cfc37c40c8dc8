"""Whatever is in a file: its text, or an error within seconds, and the next file is read."""

from __future__ import annotations

BOMB = '<!DOCTYPE x [<!ENTITY a0 "aaaaaaaaaa">%s]>' % "".join(
    f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 12)
)
