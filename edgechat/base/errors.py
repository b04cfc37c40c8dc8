"""The exceptions that edgechat raises, all derived from EdgechatError.

Other exceptions are converted to one of these where they occur. The command line and the app each print
`message` and `hint` in a single place.
"""

from __future__ import annotations

from typing import ClassVar


class EdgechatError(Exception):
    """The base class: `message` says what happened and why, `hint` says what to do next."""

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class ModelNotFound(EdgechatError):
    """No file and no catalogue model has this name."""


class ModelFileError(EdgechatError):
    """The file is not a model that can be loaded."""


class DoesNotFit(EdgechatError):
    """There is not enough memory for the model or its context, or the context exceeds the trained length."""


class OptionWithoutEffect(EdgechatError):
    """A command-line option has no effect on the named model."""

    exit_code = 2


class NotADraft(EdgechatError):
    """A model cannot draft: it is too large, has a different vocabulary or format, or lacks draft layers."""


class BackendMissing(EdgechatError):
    """A backend is not installed, or does not support models in that format."""


class EngineMissing(EdgechatError):
    """The program that should run a model is not installed, or is not where settings.toml says."""


class DryRunFailed(EdgechatError):
    """llama.cpp's dry run failed; the planner estimates the sizes instead."""


class PromptTooLong(EdgechatError):
    """The prompt, or a text to embed, does not fit into the context."""


class BadRequest(EdgechatError):
    """The request is not valid, or not suitable for this model."""


class WrongKind(BadRequest):
    """A chat was requested from an embedding model, or embeddings from a chat model."""


class NotEmbeddable(BadRequest):
    """The texts cannot be embedded: one is empty or has unknown tokens, or there are too many."""


class NotAnAdapter(BadRequest):
    """A LoRA adapter is missing or damaged, or does not fit the model."""


class QueueFull(EdgechatError):
    """Too many requests are waiting for the model; `seconds` is how long to wait before retrying."""

    def __init__(self, message: str, *, hint: str | None = None, seconds: int = 1) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class Draining(EdgechatError):
    """The server is shutting down and accepts no more requests."""


class SchemaError(BadRequest):
    """A JSON schema is wrong, or too large or complex to be enforced."""


class TemplateError(EdgechatError):
    """The model's chat template failed, looped, or produced unbounded output."""


class SwitchUnknown(EdgechatError):
    """Thinking was switched on or off for a model without that switch."""


class SettingsError(EdgechatError):
    """settings.toml, models.toml or an option is not valid."""


class FolderError(EdgechatError):
    """A folder for settings, chats or logs cannot be created."""


class StoreError(EdgechatError):
    """The conversations cannot be read or written."""


class StoreUnwritable(StoreError):
    """The disk is full, or the conversation database or its folder is not writable."""


class ResponseNotFound(StoreError):
    """No stored response, or item in one, has this `id`."""

    def __init__(self, id: str) -> None:
        super().__init__(f"{id} is not stored, or is no longer stored.")
        self.id = id


class CommandError(EdgechatError):
    """A slash command does not exist, or its argument is missing or wrong."""


class ChatNotFound(EdgechatError):
    """There is no such conversation, its id is ambiguous, or it cannot be continued as requested."""


class AttachmentError(EdgechatError):
    """A file cannot be attached to a question."""


class DocumentError(EdgechatError):
    """A document cannot be read, or a collection of documents cannot be used."""


class DocumentsUnwritable(DocumentError):
    """A collection of documents cannot be saved: the disk is full or read-only."""


class ReaderMissing(DocumentError):
    """The reader of a document is not installed or does not start; the document is not at fault."""


class ReaderLost(DocumentError):
    """The reader of a document was too slow or died; the document may not be at fault."""


class CannotSee(EdgechatError):
    """A question contains images, but the model does not accept any."""


class MediaError(EdgechatError):
    """An image or a sound cannot be used."""


class ImageError(MediaError):
    """A file is not an image that can be decoded, or an image on the web cannot be fetched."""


class ImageNotStored(ImageError):
    """An image cannot be stored: the disk is full, or its folder is not usable."""


class SoundError(MediaError):
    """A file is not a sound that can be decoded."""


class SoundNotStored(SoundError):
    """A sound cannot be stored: the disk is full, or its folder is not usable."""


class ToolError(EdgechatError):
    """A tool server cannot be started or used, or a tool cannot be called."""


class EditorError(EdgechatError):
    """The user's text editor is unknown, cannot be run or failed."""


class ChatBusy(EdgechatError):
    """A reply is being generated, and the operation would change the question being answered."""


class NotAChat(EdgechatError):
    """A file is not a valid conversation."""


class NotWritten(EdgechatError):
    """A conversation cannot be written to a file."""


class NotRemovable(EdgechatError):
    """A model belongs to another tool, is loaded, or is not stored as expected."""


class NotImported(EdgechatError):
    """A model cannot be imported: its name is in use, or the disk is full."""


class NotQuantized(EdgechatError):
    """A model cannot be quantized at all, or not to the requested level, size or maximum loss."""


class HubError(EdgechatError):
    """A request to the hub failed."""


class RepoNotFound(HubError):
    """There is no such repository, revision or file on the hub, or it is private."""


class AccessDenied(HubError):
    """A licence must be accepted first, or the token was rejected."""


class HubUnreachable(HubError):
    """There is no network, the request timed out, or the hub failed."""


class RateLimited(HubError):
    """The hub is rate-limiting requests; `seconds` is how long to wait, if the hub says so."""

    def __init__(self, message: str, *, hint: str | None = None, seconds: int | None = None) -> None:
        super().__init__(message, hint=hint)
        self.seconds = seconds


class OfflineMode(HubError):
    """The network is needed, but edgechat is offline."""


class HubAnswerError(HubError):
    """The hub sent a response that is invalid or too large."""


class RemoteFileChanged(HubError):
    """The file has changed since it was listed."""


class WrongBytes(HubError):
    """The hash of a download does not match; the download is deleted."""


class DiskError(EdgechatError):
    """A download cannot be stored: the disk is full, or the cache folder is not usable."""


class NotDrawn(EdgechatError):
    """A plot cannot be drawn: matplotlib is not installed, or the file cannot be written."""


class EngineError(EdgechatError):
    """The engine failed."""

    exit_code = 3


class LoadFailed(EngineError):
    """llama.cpp refused to load the model."""

    exit_code = 1


class OutOfMemory(LoadFailed):
    """There was not enough memory to load the model."""


class ServerRefused(LoadFailed):
    """An RPC server is on another machine, does not respond, or is busy with another program."""


class WorkerRefused(ServerRefused):
    """Another machine cannot be reached by ssh, does not lend memory, or has a different llama.cpp."""


class RemoteUnreachable(LoadFailed):
    """A remote engine cannot be reached: it is off, another program responds, or edgechat is offline."""


class RemoteDenied(LoadFailed):
    """A remote engine requires a key, or rejected the one it was sent."""


class RemoteFailed(EngineError):
    """A remote engine failed during a request, or sent a reply that was invalid or never ended."""


class DecodeFailed(EngineError):
    """A decode call failed, or produced NaN or infinite logits."""


class EngineCrashed(EngineError):
    """The worker process died; `log_tail` holds the last lines it wrote."""

    def __init__(self, message: str, *, hint: str | None = None, log_tail: str = "") -> None:
        super().__init__(message, hint=hint)
        self.log_tail = log_tail


class EngineGone(EngineCrashed):
    """The worker ended before it received the request; nothing was computed."""


class RemoteWorkerLost(EngineCrashed):
    """The connection to a machine that held layers of the model was lost, and the engine died."""


class EngineClosed(EngineError):
    """The engine was closed by its owner, before or during a load. This is not a failure."""


class RequestRefused(EngineError):
    """The request has already crashed the worker twice."""


def by_name(name: str) -> type[EdgechatError]:
    """Return the error class with this name, or EngineError if there is none."""
    candidate = globals().get(name)
    if isinstance(candidate, type) and issubclass(candidate, EdgechatError):
        return candidate
    return EngineError
