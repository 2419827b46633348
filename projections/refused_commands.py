"""Commands that a handler cannot send as a text while statements are sent ahead.

After the error of an earlier statement, which the handler cannot know of yet, `ROLLBACK TO` may lead back to the
savepoint of an earlier event: that event would be taken for applied, without its effect. COPY spoils the connection.
"""

import re

_WORDS = {"SAVEPOINT", "ROLLBACK", "RELEASE", "BEGIN", "START", "COMMIT", "END", "ABORT", "COPY"}
_WORD = re.compile(r"[a-z_]+", re.IGNORECASE | re.ASCII)
_BLANKS = re.compile(r"(?:[\s;]+|--[^\r\n]*)*")  # PostgreSQL skips empty statements too
_COMMENT_MARK = re.compile(r"/\*|\*/")


def refused_command(text: str) -> str | None:
    """The command that this text begins with, in upper case, if it is one of them."""
    word, end = _word_from(text, 0)
    if word == "PREPARE" and _word_from(text, end)[0] == "TRANSACTION":
        return "PREPARE TRANSACTION"
    return word if word in _WORDS else None


def _word_from(text: str, place: int) -> tuple[str, int]:
    """The first word from there on, after white space and comments, and where it ends."""
    begin = _end_of_blanks(text, place)
    found = _WORD.match(text, begin)
    return (found.group().upper(), found.end()) if found else ("", begin)


def _end_of_blanks(text: str, place: int) -> int:
    while True:
        blanks = _BLANKS.match(text, place)
        place = blanks.end() if blanks else place
        if not text.startswith("/*", place):
            return place
        place = _end_of_comment(text, place)


def _end_of_comment(text: str, begin: int) -> int:
    """Comments may have comments within."""
    depth = 0
    for mark in _COMMENT_MARK.finditer(text, begin):
        depth += 1 if mark.group() == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(text)
