"""Texts of callers, as they may be answered, stored and printed: one line, without control characters, of bounded
length."""

_LENGTH_MAX = 2_000


def one_line(text: str, limit: int = _LENGTH_MAX) -> str:
    r"""Return the text in one line, with characters that cannot be shown escaped (``\x1b``)."""
    line = " ".join(text[: 2 * limit].split())
    cut = line if len(line) <= limit else f"{line[: limit - 1]}…"
    return cut if cut.isprintable() else "".join(map(_escaped, cut))


def _escaped(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()
