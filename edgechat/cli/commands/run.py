"""`edgechat run`: one question, or a conversation line by line. Answers to stdout, all else to stderr.

The plain mode for screen readers (`edgechat --screen-reader`) is the same conversation, told in sentences.
"""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from edgechat import settings
from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.last_model import DEFAULT_MODEL, remember, remembered
from edgechat.chat.storage.store import Store
from edgechat.chat.upkeep import upkeep
from edgechat.cli.chat.chat_loop import ChatLoop, ChatServices, RunOptions
from edgechat.cli.chat.conversation import conversation, offering_not_to_keep, open_store
from edgechat.cli.chat.event_loop import Background
from edgechat.cli.terminal_io import note
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.errors import EdgechatError, ModelNotFound, StoreError
from edgechat.planner.drafting import asks_for_drafts
from edgechat.planner.plan import LoadPlan
from edgechat.planner.prepare import prepare
from edgechat.planner.request import PlanRequest
from edgechat.settings import Settings

__all__ = ["PIPED_LIMIT", "RunOptions", "run"]

_SIGNALLED = 128  # what shells add to the number of the signal that ended a program
PIPED_LIMIT = 16 * 2**20
"""Bytes read from a pipe; more than any context holds."""


def run(options: RunOptions) -> int:
    """Run the command; return the exit code. Raises EdgechatError."""
    prompt = None if options.converse else _whole_prompt(None if options.prompt == "-" else options.prompt)
    going_on = options.wanted.as_option
    if prompt is None and options.json:
        raise EdgechatError("--json needs a prompt.", hint='Give one: edgechat run MODEL "PROMPT" --json')
    if prompt is not None and not prompt.strip():
        raise EdgechatError("The prompt is empty.", hint=f'Give one: edgechat run MODEL "PROMPT"{going_on}')
    said = settings.load()
    _heed_signals()
    background = Background()
    with offering_not_to_keep(options.wanted):
        store = background.run(open_store(keep=options.wanted.keep))
    try:
        _talk(replace(options, prompt=prompt), said, store, background)
    finally:
        background.run(store.close())
    return 0


def _heed_signals() -> None:
    """Let SIGTERM and a hang-up end the program as Ctrl+C does, every word saved."""
    # Windows has no SIGHUP, and nohup has it ignored.
    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heeded = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]

    def leave(number: int, _: object) -> None:
        # A shell and the kernel both tell of a closed terminal, and both must not cut short what saves.
        for other in heeded:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(_SIGNALLED + number)

    for number in heeded:
        signal.signal(number, leave)


def _talk(options: RunOptions, said: Settings, store: Store, background: Background) -> None:
    system = options.system_of(said) if options.wanted.is_new else options.system
    talk = background.run(conversation(store, options.wanted, options.model or DEFAULT_MODEL, system))
    if options.model is not None:
        model, plan = options.model, _plan(options, options.model, talk)
    else:
        model, plan = _chosen(options, said, background.run(remembered(store)))
    services = ChatServices(
        options=options,
        said=said,
        store=store,
        background=background,
        plan_for=lambda name: _told(options, prepare(name, _request(options))),
        engine_for=partial(_engine, options, said, store),
        spoken=options.screen_reader or said.screen_reader,
    )
    talker = ChatLoop(services, model, plan, talk)
    talker.main(options.prompt)
    if options.converse:  # as the app does
        with contextlib.suppress(StoreError):
            background.run(remember(store, talker.model))


def _chosen(options: RunOptions, said: Settings, last: str | None) -> tuple[str, LoadPlan]:
    """Return the model that the settings name, else the one used last, else the guide; and its plan."""
    model = said.model or last or DEFAULT_MODEL
    try:
        return model, _told(options, prepare(model, _request(options)))
    except ModelNotFound:
        if model == said.model:
            raise
    note(f"{model}, used last time, is gone; {DEFAULT_MODEL} stands in for it.")
    return DEFAULT_MODEL, _told(options, prepare(DEFAULT_MODEL, _request(options)))


def _engine(
    options: RunOptions,
    said: Settings,
    store: Store,
    model: str,
    plan: LoadPlan,
    on_note: Callable[[str], None],
) -> EngineSupervisor:
    chosen = upkeep(said, lasting=store.lasting)
    if options.prompt is not None:  # after one question nobody waits for the next
        chosen = msgspec.structs.replace(chosen, settle=False)
    return EngineSupervisor(
        plan,
        idle_seconds=60 * said.idle_minutes,
        upkeep=chosen,
        replan=partial(prepare, model, _request(options)),
        on_note=on_note,
    )


def _request(options: RunOptions) -> PlanRequest:
    return PlanRequest(
        context=options.context, draft=options.draft, backend=options.backend, anyway=options.anyway
    )


def _plan(options: RunOptions, model: str, talk: Conversation) -> LoadPlan:
    """Plan the load, and tell what there is to know of it."""
    try:
        plan = prepare(model, _request(options))
    except ModelNotFound as error:
        if options.wanted.is_new or options.prompt is not None:
            raise
        # Whoever goes on easily forgets that the model comes first.
        words = ["edgechat", "run", talk.chat.model, model]
        meant = shlex.join(words) + options.wanted.as_option
        raise ModelNotFound(error.message, hint=f"Did you mean: {meant}") from error
    return _told(options, plan)


def _told(options: RunOptions, plan: LoadPlan) -> LoadPlan:
    for told in plan.notes:
        note(told)
    if plan.no_draft and asks_for_drafts(options.draft):
        note(plan.no_draft)
    if options.context is not None and plan.context > options.context:
        note(f"A context is a multiple of 256 tokens; it is {plan.context} instead of {options.context}.")
    return plan


def _whole_prompt(prompt: str | None) -> str | None:
    """Return the prompt with what is piped in after it; None where a person is there to type."""
    if sys.stdin is None or sys.stdin.isatty():
        return prompt
    piped = sys.stdin.buffer.read(PIPED_LIMIT + 1)
    if len(piped) > PIPED_LIMIT:
        raise EdgechatError(
            f"More than {PIPED_LIMIT // 2**20} MiB were piped in, which no context holds.",
            hint="Pipe in only the part that matters.",
        )
    text = piped.decode("utf-8", "replace")
    return "\n\n".join(part for part in (prompt, text) if part) if prompt or text else prompt or ""
