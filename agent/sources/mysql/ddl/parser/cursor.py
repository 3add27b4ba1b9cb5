"""Cursor: reads the tokens of a statement one by one; unexpected ones raise ``UnreadableError``. Pure."""

from collections.abc import Sequence
from typing import Final

from agent.sources.mysql.ddl.parser.tokens import Token, TokenKind

#: schema and name of a table
Name = tuple[str, str]

#: replaces bytes that cannot be decoded
LOST: Final = "\ufffd"

_END: Final = Token(TokenKind.SYMBOL, "", 0, 0)


class UnreadableError(Exception):
    """A statement, or a part of one, that is not supported."""


class Cursor:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def __bool__(self) -> bool:
        """Return whether any tokens are left."""
        return self._at < len(self._tokens)

    @property
    def rest(self) -> Sequence[Token]:
        return self._tokens[self._at :]

    def peek(self, ahead: int = 0) -> Token:
        """Return the next token, or the one ``ahead`` after it; an empty one past the end."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def next(self) -> Token:
        """Consume and return the next token.

        :raises UnreadableError: there is none.
        """
        token = self.peek()
        if token is _END:
            raise UnreadableError("the statement ends early")
        self._at += 1
        return token

    def take(self, *words: str) -> bool:
        """Consume these bare words if they come next; return whether they did."""
        if any(self.peek(ahead).word != word for ahead, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def take_one(self, *words: str) -> str:
        """Consume and return the one of these bare words that comes next; return an empty string if none does."""
        word = self.peek().word
        if not word or word not in words:
            return ""
        self._at += 1
        return word

    def symbol(self, text: str) -> bool:
        token = self.peek()
        is_next = token.kind is TokenKind.SYMBOL and token.text == text
        self._at += is_next
        return is_next

    def charset(self, word: str) -> None:
        """Consume what is left of CHARACTER SET or CHAR SET behind ``word``; CHARSET and COLLATE are whole.

        :raises UnreadableError: SET is missing.
        """
        if word in ("CHARACTER", "CHAR"):
            self.expect("SET")

    def expect(self, *words: str) -> None:
        """Consume these bare words.

        :raises UnreadableError: something else comes next.
        """
        if not self.take(*words):
            raise UnreadableError(f"{' '.join(words)} is missing")

    def name(self) -> str:
        """Consume and return a name.

        :raises UnreadableError: no name comes next.
        """
        token = self.next()
        if not token.name:
            raise UnreadableError(f"{token.text!r} is no name")
        return token.name

    def column(self) -> str:
        """Consume and return a column's name, without the names of its table and database before it.

        :raises UnreadableError: no name comes next.
        """
        self.symbol(".")
        name = self.name()
        while self.symbol("."):
            name = self.name()
        return name

    def table(self, database: str) -> Name:
        """Consume and return a table's name; unqualified names are in ``database``.

        :raises UnreadableError: no name comes next.
        """
        first = self.name()
        return (first, self.name()) if self.symbol(".") else (database, first)

    def group(self) -> "Cursor":
        """Consume parentheses and return a cursor over their content.

        :raises UnreadableError: no parentheses come next, or they are not closed.
        """
        if not self.symbol("("):
            raise UnreadableError("( is missing")
        begin, depth = self._at, 1
        while depth:
            text = self.next().text
            depth += (text == "(") - (text == ")")
        return Cursor(self._tokens[begin : self._at - 1])

    def expression(self) -> Sequence[Token]:
        """Consume and return a token, or a group with its parentheses."""
        begin = self._at
        if self.peek().text == "(":
            self.group()
        else:
            self.next()
        return self._tokens[begin : self._at]

    def check_decoded(self) -> None:
        """Check that the rest has no bytes that are no text of the session's character set; comments may.

        :raises UnreadableError: it has.
        """
        words = [token.word for token in self.rest]
        if any(
            LOST in token.text and before != "COMMENT" for before, token in zip(["", *words], self.rest, strict=False)
        ):
            raise UnreadableError("it has bytes that are no text")

    def wait(self) -> None:
        """Consume MariaDB's lock timeout: ``WAIT 5``, ``NOWAIT``."""
        if not self.take("NOWAIT") and self.peek().word == "WAIT" and self.peek(1).kind is TokenKind.NUMBER:
            self._at += 2

    def parts(self) -> "list[Cursor]":
        """Split the rest at commas outside of parentheses."""
        depth, cuts = 0, [self._at]
        for at in range(self._at, len(self._tokens)):
            text = self._tokens[at].text
            depth += (text == "(") - (text == ")")
            if depth == 0 and text == ",":
                cuts.append(at + 1)
        ends = [cut - 1 for cut in cuts[1:]] + [len(self._tokens)]
        return [Cursor(self._tokens[begin:end]) for begin, end in zip(cuts, ends, strict=True)]
