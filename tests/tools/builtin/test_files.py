"""The files tool: what is below its folder, and nothing else."""

import json
import os

import pytest

from edgechat.base.errors import ToolError
from edgechat.tools.builtin.files import files_below
from edgechat.tools.tool import ToolSpec

posix = pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("import os\n\nprint('Hello')\n", encoding="utf-8")
    (root / "notes.txt").write_text("hello\nworld\n", encoding="utf-8")
    (root / "image.bin").write_bytes(b"\0\1hello")
    (root / ".env").write_text("KEY=hello", encoding="utf-8")
    (root / ".gitignore").write_text("ignored.txt\n", encoding="utf-8")
    (root / ".git").mkdir()
    (root / "ignored.txt").write_text("hello", encoding="utf-8")
    (tmp_path / "secret.txt").write_text("hello treasure", encoding="utf-8")
    return root


@pytest.fixture
def group(folder):
    return files_below(str(folder))


async def call(group, name, **arguments):
    result = await group.call(ToolSpec(server="files", name=name), json.dumps(arguments))
    assert result.failed == result.text.startswith("Error: ")
    return result.text


async def test_tools_say_which_folder(group, folder):
    tools = await group.tools()
    assert [tool.name for tool in tools] == ["list_files", "read_file", "search_files"]
    assert all(str(folder) in tool.description for tool in tools)
    other = await files_below(str(folder / "src")).tools()
    assert other[0].pin != tools[0].pin  # consent is for a folder
    assert json.loads(tools[1].schema)["required"] == ["path"]


async def test_list(group):
    size = len("import os\n\nprint('Hello')\n")
    assert (await call(group, "list_files")).splitlines() == [
        "image.bin  7 bytes",
        "notes.txt  12 bytes",
        "src/",
        f"src/main.py  {size + (3 if os.name == 'nt' else 0)} bytes",
    ]
    assert (await call(group, "list_files", folder="src")).startswith("src/main.py  ")
    nowhere = "Error: there is no nowhere in the folder: list_files shows what there is."
    assert await call(group, "list_files", folder="nowhere") == nowhere


async def test_read(group, folder):
    assert await call(group, "read_file", path="src/main.py") == "import os\n\nprint('Hello')"
    assert await call(group, "read_file", path="notes.txt", start_line=2) == "world"
    assert "has 2 lines" in await call(group, "read_file", path="notes.txt", start_line=9)
    assert await call(group, "read_file", path="image.bin") == "Error: image.bin is a binary file of 7 bytes."
    (folder / "long.txt").write_text("\n".join(f"line {n}" for n in range(1, 1001)), encoding="utf-8")
    text = await call(group, "read_file", path="long.txt")
    assert text.endswith("line 400\n[Lines 1 to 400 of 1000. To go on: start_line 401]")
    assert (await call(group, "read_file", path="long.txt", start_line=401)).startswith("line 401\n")
    (folder / "wide.txt").write_text("x" * 100_000, encoding="utf-8")
    assert len(await call(group, "read_file", path="wide.txt")) < 25_000


async def test_search(group):
    assert (
        await call(group, "search_files", text="hello") == "notes.txt:1: hello\nsrc/main.py:3: print('Hello')"
    )
    for folder in ("src", "src/main.py"):
        found = await call(group, "search_files", text="hello", folder=folder)
        assert found == "src/main.py:3: print('Hello')"
    assert (await call(group, "search_files", text="nowhere")).startswith(
        "No line contains this text. Search"
    )
    for question in ("Hello there", "Where is Hello?"):
        found = await call(group, "search_files", text=question)
        assert found.splitlines() == [
            "No line contains this text. These lines contain some of its words:",
            "notes.txt:1: hello",
            "src/main.py:3: print('Hello')",
        ]


async def test_search_shows_the_lines_with_the_rarest_words(group, folder):
    (folder / "many.txt").write_text("the lamp holds\n" * 50 + "Copyright Ada\n", encoding="utf-8")
    found = await call(group, "search_files", text="Who holds the copyright?")
    assert found.splitlines()[1] == "many.txt:51: Copyright Ada"


async def test_search_shows_the_files_with_such_a_name(group):
    found = await call(group, "search_files", text="src/Main.py")
    assert found.splitlines() == ["No line contains this text, but these file names do:", "src/main.py"]


async def test_search_is_bounded(group, folder):
    (folder / "many.txt").write_text("hello\n" * 500, encoding="utf-8")
    text = await call(group, "search_files", text="hello")
    assert len(text.splitlines()) == 61
    assert await call(group, "search_files", text="hello", folder="many.txt") == text
    assert text.endswith("[Not complete: it ends after 60 lines.]")


@pytest.mark.parametrize(
    "path",
    [
        "../secret.txt",
        "src/../../secret.txt",
        "/etc/hostname",
        "~/x",
        "",
        ".",
        "src",
        "\0",
        "x" * 5000,
        "C:\\x",
    ],
)
async def test_nothing_outside_is_read(group, path):
    assert (await call(group, "read_file", path=path)).startswith("Error: ")
    assert "hello" not in await call(group, "search_files", text="treasure", folder=path)


async def test_hidden_files_are_not_read(group):
    for path in (".env", "src/../.env", ".git"):
        assert "is hidden" in await call(group, "read_file", path=path)
    assert "is hidden" in await call(group, "list_files", folder=".git")


@posix
async def test_links_are_resolved(group, folder):
    (folder / "out.txt").symlink_to("../secret.txt")
    (folder / "up").symlink_to("..")
    (folder / "env").symlink_to(".env")
    (folder / "in.txt").symlink_to("notes.txt")
    os.mkfifo(folder / "pipe")
    assert "outside the folder" in await call(group, "read_file", path="out.txt")
    assert "outside the folder" in await call(group, "read_file", path="up/secret.txt")
    assert "outside the folder" in await call(group, "list_files", folder="up")
    assert "is hidden" in await call(group, "read_file", path="env")
    assert "cannot be read" in await call(group, "read_file", path="pipe")
    assert await call(group, "read_file", path="in.txt") == "hello\nworld"
    assert "treasure" not in await call(group, "search_files", text="hello")


async def test_wrong_arguments(group):
    assert "wrong arguments" in await call(group, "read_file")
    assert "wrong arguments" in await call(group, "read_file", path="notes.txt", start_line=0)
    assert "wrong arguments" in await call(group, "list_files", recursive=True)


@pytest.mark.parametrize("name", ["", "nowhere", "project/notes.txt", "\0"])
def test_a_folder_that_is_not_there(folder, tmp_path, name):
    with pytest.raises(ToolError, match="does not exist"):
        files_below(name and str(tmp_path / name))
