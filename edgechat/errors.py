"""Every error that edgechat raises on purpose, in one tree.

    EdgechatError                 what happened, and a hint: the next thing to do
    ├── ModelNotFound             no such file, and no such name in the catalogue
    ├── ModelFileError            the file is not a model that can be loaded
    ├── DoesNotFit                the memory at hand does not carry the model or the context
    ├── NotADraft                 a model that cannot draft for another one
    ├── BackendMissing            what was asked to compute a model is not installed, or does not read it
    ├── DryRunFailed              llama.cpp does not say what a load would take; it is estimated instead
    ├── PromptTooLong             the prompt, or a text to embed, does not fit into the context
    ├── BadRequest                what is asked for makes no sense, or not with this model
    │   ├── WrongKind             a chat was wanted of a model for embeddings, or embeddings of one for chat
    │   ├── NotEmbeddable         texts of which no embeddings can be made: empty, too many, unknown tokens
    │   └── SchemaError           a JSON schema is wrong, or more than can be followed
    ├── QueueFull                 too many requests wait for the model; later it may work
    ├── Draining                  the server is ending, and takes no more requests
    ├── TemplateError             the model's chat template failed, looped or grew without bound
    ├── SwitchUnknown             thinking was switched on a model that has no such switch
    ├── SettingsError             settings.toml or models.toml says something that makes no sense
    ├── FolderError               a folder for settings, chats or logs cannot be made
    ├── StoreError                the conversations cannot be read or written
    │   └── StoreUnwritable       the disk is full, or the file may not be written
    ├── CommandError              a slash command that does not exist, or with a wrong argument
    ├── ChatNotFound              no such conversation, or several that the id could mean
    ├── AttachmentError           a file that cannot be sent along with a question
    ├── ChatBusy                  a reply is being written, which what was asked for would change
    ├── NotAChat                  a file holds no conversation that can be read
    ├── NotWritten                a conversation cannot be written to the file that was named
    ├── NotRemovable              a model that is another tool's, or loaded, or not where it should be
    ├── NotImported               a model that cannot be put into our folder
    ├── HubError                  the hub did not give what was asked of it
    │   ├── RepoNotFound          no such repository, revision or file there, or none that may be seen
    │   ├── AccessDenied          a licence must be accepted first, or the token is not taken
    │   ├── HubUnreachable        no network, no answer in time, or the hub itself has trouble
    │   ├── RateLimited           too many requests for now
    │   ├── OfflineMode           it would take the network, which is switched off
    │   ├── HubAnswerError        an answer that makes no sense, or is larger than any sound one
    │   ├── RemoteFileChanged     the file is no longer the one that was listed
    │   └── WrongBytes            a download is not what the hub says the file is; nothing of it is kept
    ├── DiskError                 a download cannot be kept: the disk is full, or its folder is not sound
    ├── NotDrawn                  a plot: matplotlib is not there, or its file cannot be written
    └── EngineError               the engine failed; exit code 3
        ├── LoadFailed            llama.cpp refused the model
        │   ├── OutOfMemory       or had not the memory for it
        │   └── ServerRefused     a server of llama.cpp is not on this machine, or does not answer
        ├── DecodeFailed          a decode call failed, or gave numbers that are none
        ├── EngineCrashed         the worker process died
        │   └── EngineGone        before the request came, or it was ended just then
        ├── EngineClosed          it was ended by whoever had it, who wants no model of it any more
        └── RequestRefused        this request has already killed the worker twice

Foreign exceptions are turned into one of these where they arise; the command line and the app print
`message` and `hint` at their edge, and nowhere else.
"""

from __future__ import annotations

from typing import ClassVar


class EdgechatError(Exception):
    """The base of all: `message` says what happened and why, `hint` what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ModelNotFound(EdgechatError):
    """No such file, and no such name in the catalogue."""


class ModelFileError(EdgechatError):
    """The file is not a model that can be loaded."""


class DoesNotFit(EdgechatError):
    """The memory at hand does not carry the model or the context, or its training does not carry that."""


class NotADraft(EdgechatError):
    """A model cannot draft for another one: it is not smaller, or of another vocabulary or kind."""


class BackendMissing(EdgechatError):
    """What was asked to compute a model is not installed here, or does not read models of its format."""


class DryRunFailed(EdgechatError):
    """llama.cpp does not say what a load would take; the planner estimates it instead."""


class PromptTooLong(EdgechatError):
    """The prompt, or a text to embed, does not fit into the context."""


class BadRequest(EdgechatError):
    """What a request asks for makes no sense, or not with this model."""


class WrongKind(BadRequest):
    """A chat was wanted of a model for embeddings, or embeddings of one for chat."""


class NotEmbeddable(BadRequest):
    """No embeddings can be made of these texts: one is empty, they are too many, or of unknown tokens."""


class QueueFull(EdgechatError):
    """Too many requests wait for the model; `seconds` is when it is likely to be worth another try."""

    def __init__(self, message: str, *, hint: str | None = None, seconds: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class Draining(EdgechatError):
    """The server is ending, and takes no more requests."""


class SchemaError(BadRequest):
    """A JSON schema is wrong, or larger or more complex than can be followed."""


class TemplateError(EdgechatError):
    """The model's chat template failed, looped or grew without bound."""


class SwitchUnknown(EdgechatError):
    """Thinking was switched on a model that has no such switch."""


class SettingsError(EdgechatError):
    """settings.toml or models.toml says something that makes no sense."""


class FolderError(EdgechatError):
    """A folder for settings, chats or logs cannot be made."""


class StoreError(EdgechatError):
    """The conversations cannot be read or written."""


class StoreUnwritable(StoreError):
    """The disk is full, or the file of the conversations, or its folder, may not be written."""


class CommandError(EdgechatError):
    """A slash command that does not exist, or whose argument is missing or wrong."""


class ChatNotFound(EdgechatError):
    """There is no such conversation, or several that could be meant, or it cannot go on as was asked."""


class AttachmentError(EdgechatError):
    """A file cannot be sent along with a question."""


class ChatBusy(EdgechatError):
    """A reply is being written, and what was asked for would change what it answers."""


class NotAChat(EdgechatError):
    """A file holds no conversation that can be read."""


class NotWritten(EdgechatError):
    """A conversation cannot be written to the file that was named."""


class NotRemovable(EdgechatError):
    """A model is another tool's to remove, or loaded, or does not lie as it should."""


class NotImported(EdgechatError):
    """A model cannot be put into edgechat's folder: its name is taken, or the disk is full."""


class HubError(EdgechatError):
    """The hub did not give what was asked of it."""


class RepoNotFound(HubError):
    """No such repository, revision or file on the hub, or none that may be seen."""


class AccessDenied(HubError):
    """A licence must be accepted first, or the token is not taken."""


class HubUnreachable(HubError):
    """There is no network, no answer in time, or the hub itself has trouble."""


class RateLimited(HubError):
    """The hub wants no more requests for now; `seconds` is how long, as far as it says."""

    def __init__(self, message: str, *, hint: str | None = None, seconds: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class OfflineMode(HubError):
    """It would take the network, which is switched off."""


class HubAnswerError(HubError):
    """The hub gave an answer that makes no sense, or is larger than any sound one."""


class RemoteFileChanged(HubError):
    """The file is no longer the one that was listed."""


class WrongBytes(HubError):
    """A download is not what the hub says the file is. Nothing of it is kept."""


class DiskError(EdgechatError):
    """A download cannot be kept: the disk is full, or the cache's folder is not as it should be."""


class NotDrawn(EdgechatError):
    """matplotlib is not installed, or the picture cannot be written."""


class EngineError(EdgechatError):
    """The engine failed."""

    exit_code = 3


class LoadFailed(EngineError):
    """llama.cpp refused the model."""

    exit_code = 1


class OutOfMemory(LoadFailed):
    """llama.cpp could not have the memory it wanted."""


class ServerRefused(LoadFailed):
    """An RPC server of llama.cpp is not on this machine, or not there, or busy with another program."""


class DecodeFailed(EngineError):
    """A decode call failed, or gave numbers that are none."""


class EngineCrashed(EngineError):
    """The worker process died; `log_tail` holds the last lines it wrote."""

    def __init__(self, message: str, *, hint: str | None = None, log_tail: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log_tail = log_tail


class EngineGone(EngineCrashed):
    """No worker runs, and a request came that may not start one: nothing of it was computed."""


class EngineClosed(EngineError):
    """The engine was closed while it loaded, or before: that is what somebody wanted, and no failure."""


class RequestRefused(EngineError):
    """The request has already killed the worker twice."""


def by_name(name: str) -> type[EdgechatError]:
    """Return the class of that name; one that is not in the tree comes back as EngineError."""
    return _BY_NAME.get(name, EngineError)


def _tree(root: type[EdgechatError]) -> dict[str, type[EdgechatError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _tree(child)
    return found


_BY_NAME = _tree(EdgechatError)
