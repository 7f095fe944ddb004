"""The agent's log: one line per membership event, as text or as JSON."""

from __future__ import annotations

import json
import logging
import sys


class _Text(logging.Formatter):
    """One line, or several for an exception; what a terminal would obey rather than show is replaced."""

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if text.isprintable():
            return text
        return "".join(letter if letter.isprintable() or letter in "\n\t" else "?" for letter in text)


class _Json(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def set_up(as_json: bool) -> None:
    """Log reknit's own lines to standard error; other libraries' warnings as well."""
    handler = logging.StreamHandler(sys.stderr)
    text = _Text("%(asctime)s reknit %(levelname).1s %(message)s", "%H:%M:%S")
    handler.setFormatter(_Json() if as_json else text)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("reknit").setLevel(logging.INFO)
