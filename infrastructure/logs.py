"""One line per log record: a constant message and fields. Fields carry ids and positions, never a payload or a DSN."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any, Literal

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


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    """What was passed as `extra`, and where an exception came from: its type and place, not its text,
    which may quote a connection string or a value."""
    fields = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    if record.exc_info and record.exc_info[0]:
        fields["error"] = record.exc_info[0].__name__
        traceback = record.exc_info[2]
        while traceback and traceback.tb_next:
            traceback = traceback.tb_next
        if traceback:
            fields["at"] = f"{traceback.tb_frame.f_code.co_filename.rsplit('/', 1)[-1]}:{traceback.tb_lineno}"
    return fields
