"""Dry run: asks llama.cpp's own allocator how much memory a load will need.

It runs in a child process, as native code may abort on unusual shapes. The child gets the model's skeleton
(`formats/skeleton.py`) and answers within milliseconds. Nothing is allocated except recurrent states.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from types import TracebackType

import msgspec

from edgechat.base.errors import DryRunFailed, ModelFileError
from edgechat.base.process.child import Child, ChildLost
from edgechat.base.text import one_line
from edgechat.models.formats.header import ModelHeader
from edgechat.models.formats.skeleton import write_skeleton
from edgechat.native.accelerators import devices
from edgechat.native.accelerators.devices import DeviceInventory
from edgechat.native.params import Breakdown, LoadParams

MEMORY_LIMIT = 1 << 30
"""Memory limit for the child process, in bytes. Without recurrent states it needs 100 MB."""
TIME_LIMIT = 10.0
"""Seconds to wait for an answer, which takes longer than the usual milliseconds if a GPU has to wake up."""


class DryRunQuestion(msgspec.Struct, frozen=True, tag="load"):
    """Asks how much memory it takes to load the skeleton at `path`."""

    path: str
    params: LoadParams


class DevicesQuestion(msgspec.Struct, frozen=True, tag="devices"):
    """Asks which devices llama.cpp can use, including any on the given RPC servers."""

    rpc: tuple[str, ...] = ()


AnyQuestion = DryRunQuestion | DevicesQuestion


class DryRunAnswer(msgspec.Struct, frozen=True):
    """The answer to a question: the memory that a load needs, the devices, or an error."""

    breakdown: Breakdown | None = None
    inventory: DeviceInventory | None = None
    error: str = ""


class DryRun:
    """A child process for dry runs. Create it early, as it takes a moment to start.

    with DryRun() as run:
        run.show(read_model(path))
        run.ask(LoadParams(context=8192)).cache
    """

    def __init__(self) -> None:
        self._known: dict[LoadParams, Breakdown | str] = {}
        self._failed = ""
        self._header: ModelHeader | None = None
        self._skeleton: Path | None = None
        self._shown = 0
        self._child: Child | None = None
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="edgechat-", ignore_cleanup_errors=True)
            self._log = Path(self._folder.name) / "log"
            with self._log.open("wb") as log:
                self._child = Child("dryrun", log=log)
        except OSError as error:
            self._failed = f"it cannot be started: {error}"

    def __enter__(self) -> DryRun:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def show(self, header: ModelHeader) -> None:
        """Choose the model for the following calls to `ask`."""
        if header is self._header:
            return
        self._header = header
        self._known.clear()
        if self._child is None:
            return
        self._shown += 1  # a new name, which the process has not loaded yet
        path = Path(self._folder.name) / f"skeleton-{self._shown}.gguf"
        try:
            write_skeleton(header, path)
        except (OSError, ModelFileError) as error:
            self._failed = one_line(str(error))
        self._skeleton = path

    def ask(self, params: LoadParams) -> Breakdown:
        """Return the memory that a load needs.

        Raises DryRunFailed. A load that has already failed is not tried again.
        """
        if params not in self._known:
            if self._skeleton is None and not self._failed:
                raise ValueError("no model was shown")
            answer = self._answer(DryRunQuestion(str(self._skeleton), params), TIME_LIMIT)
            self._known[params] = answer.breakdown or _reason(answer)
        result = self._known[params]
        if isinstance(result, str):
            raise DryRunFailed(f"llama.cpp's dry run failed: {result}.")
        return result

    def inventory(self, rpc: tuple[str, ...] = ()) -> DeviceInventory:
        """Return llama.cpp's devices and their free memory. This needs no model. Raises DryRunFailed.

        `native.accelerators.devices.read_inventory` does the same in a separate child process.
        """
        answer = self._answer(DevicesQuestion(rpc), devices.TIME_LIMIT)
        if answer.inventory is None:
            raise DryRunFailed(f"llama.cpp could not list its devices: {_reason(answer)}.")
        return answer.inventory

    def _answer(self, question: AnyQuestion, seconds: float) -> DryRunAnswer:
        if self._failed or self._child is None:
            return DryRunAnswer(error=self._failed)
        try:
            request = msgspec.msgpack.encode(question)
            payload = self._child.ask(request, seconds=seconds, memory=MEMORY_LIMIT)
            return msgspec.msgpack.decode(payload, type=DryRunAnswer)
        except (ChildLost, msgspec.DecodeError) as error:
            self._failed = f"its process {error}{self._abort_reason()}"
            return DryRunAnswer(error=self._failed)

    def _abort_reason(self) -> str:
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            for line in log.read(2**16).decode("utf-8", "replace").splitlines():
                if "GGML_ASSERT" in line or "terminate called" in line or "error" in line.lower():
                    return f" ({one_line(line)})"
        return ""

    def close(self) -> None:
        """Stop the child process."""
        if self._child is not None:
            self._child.close()
            self._child = None
            self._folder.cleanup()
        self._failed = self._failed or "it has ended"


def _reason(answer: DryRunAnswer) -> str:
    return one_line(answer.error).removesuffix(".") or "it gave no reason"
