"""Who sent a request and when, under the names that logs use for it."""

from __future__ import annotations

from testbed.workloads.formats.fields import Fields, first_present, label, require_object, seconds

CLIENT_NAMES = ("user", "user_id", "tenant", "tenant_id", "client", "client_id")
SESSION_NAMES = ("session_id", "conversation_id", "session", "thread_id", "chat_id")
TIME_NAMES = ("arrival_time", "arrival", "timestamp", "created", "created_at", "time")
TIME_UNITS = {"": 1.0, "_s": 1.0, "_ms": 1e-3, "_ns": 1e-9}


def client_of(fields: Fields) -> str:
    """Who asked, from the line or its metadata; `default` if nobody is named."""
    return _label(fields, CLIENT_NAMES) or "default"


def session_of(fields: Fields) -> str | None:
    """The conversation, from the line or its metadata."""
    return _label(fields, SESSION_NAMES)


def arrival_of(fields: Fields) -> tuple[float | None, str | None]:
    """Seconds, and the record's `clock`, from the line or its metadata.

    Names ending in _ms and _ns are in those units.
    """
    for place in _places(fields):
        for suffix, unit in TIME_UNITS.items():
            if name := first_present(place, tuple(name + suffix for name in TIME_NAMES)):
                is_date = isinstance(place[name], str)
                return seconds(place, name, unit), f"{name} as a {'date' if is_date else 'number'}"
    return None, None


def _label(fields: Fields, names: tuple[str, ...]) -> str | None:
    """The first that is named; many logs write an empty name for nobody."""
    for place in _places(fields):
        for name in names:
            if place.get(name) not in (None, ""):
                return label(place[name], name)
    return None


def _places(fields: Fields) -> list[Fields]:
    metadata = fields.get("metadata")
    return [fields] if metadata is None else [fields, require_object(metadata, "metadata")]
