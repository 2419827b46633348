"""One line per log record: a constant message and fields. Fields carry ids and positions, never a payload or a DSN."""

import json
import logging
import sys
from datetime import UTC, datetime
from traceback import walk_tb
from typing import Any, Literal

from infrastructure.postgres import cause_of

_STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(format: Literal["text", "json"], level: str) -> None:
    """Sends this process's logs to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if format == "json" else TextLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)


class TextLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{name}={value}" for name, value in _fields(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.getMessage()}"
        return f"{line} {fields}".rstrip()


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {"time": _time(record), "level": record.levelname, "message": record.getMessage()}
        return json.dumps(line | _fields(record), default=str)


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")


def error_fields(error: BaseException) -> dict[str, object]:
    """What to log of an exception instead of itself: its kind, and the last line of code outside of libraries
    that it passed. Not its text, which may quote an address, a role or a value; Python's own log format prints that.
    """
    passed = [f"{frame.f_code.co_filename}:{line}" for frame, line in walk_tb(error.__traceback__)]
    ours = [place for place in passed if "site-packages" not in place] or passed
    return {"error": cause_of(error), "at": ours[-1].rpartition("/")[2] if ours else "?"}


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What was passed as `extra`, and what may be told of an exception that a library logged."""
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    if record.exc_info and record.exc_info[1]:
        fields |= error_fields(record.exc_info[1])
    return fields
