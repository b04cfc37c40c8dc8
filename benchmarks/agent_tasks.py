"""Tasks with one right answer: questions that call for a function, and texts to turn into JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


def _function(
    name: str, description: str, required: dict[str, str | list[str]], **optional: str
) -> dict[str, Any]:
    """Return a function definition. Each parameter is given as a JSON type or as a list of allowed values."""
    properties: dict[str, Any] = {
        key: {"type": "string", "enum": kind} if isinstance(kind, list) else {"type": kind}
        for key, kind in (required | optional).items()
    }
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


FUNCTIONS = [
    _function("get_weather", "The present weather of a city.", {"city": "string"}),
    _function("read_file", "The contents of a file.", {"path": "string"}),
    _function("delete_file", "Delete a file.", {"path": "string"}),
    _function("rename_file", "Give a file another name.", {"path": "string", "new_name": "string"}),
    _function("run_command", "Run a shell command.", {"command": "string"}),
    _function(
        "convert_currency",
        "Convert an amount of money; currencies as three letters.",
        {"amount": "number", "source": "string", "target": "string"},
    ),
    _function("set_timer", "Start a timer.", {"minutes": "integer"}),
    _function("send_email", "Send an e-mail.", {"to": "string", "subject": "string", "body": "string"}),
    _function("set_light", "Switch a lamp.", {"room": "string", "state": ["on", "off"]}),
    _function("search_web", "Search the web.", {"query": "string"}),
]

TASKS: list[tuple[str, str, dict[str, Any]]] = [
    ("What is the weather in Paris?", "get_weather", {"city": "Paris"}),
    ("Do I need an umbrella in Tokyo right now?", "get_weather", {"city": "Tokyo"}),
    ("How hot is it in Cairo at the moment?", "get_weather", {"city": "Cairo"}),
    ("Show me what is in src/main.py.", "read_file", {"path": "src/main.py"}),
    ("Open README.md and read it.", "read_file", {"path": "README.md"}),
    ("Remove the file old.log.", "delete_file", {"path": "old.log"}),
    ("Please delete /tmp/cache.db.", "delete_file", {"path": "/tmp/cache.db"}),
    ("Rename a.txt to b.txt.", "rename_file", {"path": "a.txt", "new_name": "b.txt"}),
    (
        "Change the name of notes.md to journal.md.",
        "rename_file",
        {"path": "notes.md", "new_name": "journal.md"},
    ),
    ("Run the command `ls -la`.", "run_command", {"command": "ls -la"}),
    ("Execute `git status` in the shell.", "run_command", {"command": "git status"}),
    ("Run pytest -q.", "run_command", {"command": "pytest -q"}),
    ("Convert 100 USD to EUR.", "convert_currency", {"amount": 100, "source": "USD", "target": "EUR"}),
    ("How many JPY are 25.5 GBP?", "convert_currency", {"amount": 25.5, "source": "GBP", "target": "JPY"}),
    ("Set a timer for 10 minutes.", "set_timer", {"minutes": 10}),
    ("Wake me in half an hour with a timer.", "set_timer", {"minutes": 30}),
    ("Turn the light in the kitchen on.", "set_light", {"room": "kitchen", "state": "on"}),
    ("Switch off the lamp in the bedroom.", "set_light", {"room": "bedroom", "state": "off"}),
    (
        "Send an e-mail to bob@example.org with the subject Lunch and the body See you at noon.",
        "send_email",
        {"to": "bob@example.org", "subject": "Lunch", "body": "See you at noon"},
    ),
    (
        "Search the web for: llama.cpp release notes",
        "search_web",
        {"query": "llama.cpp release notes"},
    ),
]


@dataclass(frozen=True)
class Text:
    """A text and the data that it contains. The schema is derived from the data."""

    text: str
    data: dict[str, Any]


def _type_of(value: Any) -> dict[str, Any]:
    match value:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case float():
            return {"type": "number"}
        case list():
            return {"type": "array", "items": _type_of(value[0])}
        case _:
            return {"type": "string"}


def schema_of(text: Text) -> dict[str, Any]:
    """Return the schema that an answer must follow."""
    properties = {key: _type_of(value) for key, value in text.data.items()}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


TEXTS = [
    Text("Anna Berg is 34 years old and lives in Oslo.", {"name": "Anna Berg", "age": 34, "city": "Oslo"}),
    Text(
        "Our shop in Lyon, led by Paul Roux, has 12 employees.",
        {"city": "Lyon", "leader": "Paul Roux", "employees": 12},
    ),
    Text(
        "The train to Bern leaves at 14:05 from platform 7.",
        {"destination": "Bern", "time": "14:05", "platform": 7},
    ),
    Text(
        "Order 8812: three blue shirts for 59.70 dollars.",
        {"order": 8812, "quantity": 3, "color": "blue", "price": 59.7},
    ),
    Text("We need milk, bread and eggs.", {"items": ["milk", "bread", "eggs"]}),
    Text(
        "The meeting with Carla is on Friday at 9:30 in room B2.",
        {"person": "Carla", "day": "Friday", "time": "9:30", "room": "B2"},
    ),
    Text("The river Elbe is 1094 kilometres long.", {"river": "Elbe", "length_km": 1094}),
    Text(
        "Flight LH400 from Frankfurt to New York is delayed by 45 minutes.",
        {"flight": "LH400", "origin": "Frankfurt", "destination": "New York", "delay_minutes": 45},
    ),
    Text("Version 2.3.1 was released and fixes 17 bugs.", {"version": "2.3.1", "bugs_fixed": 17}),
    Text(
        "The flat has 3 rooms, 72.5 square metres and no balcony.",
        {"rooms": 3, "square_metres": 72.5, "balcony": False},
    ),
    Text(
        "Recipe for 4 people: rice, beans and onions.",
        {"people": 4, "ingredients": ["rice", "beans", "onions"]},
    ),
    Text(
        "Ada Lovelace was born in 1815 in London.",
        {"name": "Ada Lovelace", "birth_year": 1815, "birth_place": "London"},
    ),
    Text(
        "The server db-3 has 64 GB of memory and is running.",
        {"server": "db-3", "memory_gb": 64, "running": True},
    ),
    Text(
        "Invoice 2041 of Acme is 310.25 euros and has been paid.",
        {"invoice": 2041, "company": "Acme", "amount": 310.25, "paid": True},
    ),
    Text(
        "Mount Fuji in Japan is 3776 metres high.",
        {"mountain": "Mount Fuji", "country": "Japan", "height_m": 3776},
    ),
    Text("The file report.pdf has 18 pages.", {"file": "report.pdf", "pages": 18}),
    Text("Team members: Ana, Ben, Chloe and Dev.", {"members": ["Ana", "Ben", "Chloe", "Dev"]}),
    Text(
        "The book 'Dune' by Frank Herbert appeared in 1965.",
        {"title": "Dune", "author": "Frank Herbert", "year": 1965},
    ),
    Text(
        "It is 21.5 degrees and sunny in Madrid.", {"city": "Madrid", "temperature": 21.5, "weather": "sunny"}
    ),
    Text(
        "Call Eva at 555-0134 about the contract.", {"name": "Eva", "phone": "555-0134", "topic": "contract"}
    ),
]
