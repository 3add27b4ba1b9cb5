"""Cursor over the tokens of a statement: what comes next is looked at, taken, or refused as ``Unreadable``. Pure."""

from collections.abc import Sequence
from typing import Final

from agent.sources.mysql.ddl.parser.tokens import Token, TokenKind

#: schema and name of a table
Name = tuple[str, str]

_END: Final = Token(TokenKind.SYMBOL, "", 0, 0)


class UnreadableError(Exception):
    """A statement, or a part of one, that says what is not known here."""


class Cursor:
    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def __bool__(self) -> bool:
        """Whether anything is left."""
        return self._at < len(self._tokens)

    @property
    def rest(self) -> Sequence[Token]:
        return self._tokens[self._at :]

    def peek(self, ahead: int = 0) -> Token:
        """The next token, or the one so many behind it; an empty one behind the end."""
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else _END

    def next(self) -> Token:
        """:raises UnreadableError: there is none."""
        token = self.peek()
        if token is _END:
            raise UnreadableError("the statement ends early")
        self._at += 1
        return token

    def take(self, *words: str) -> bool:
        """Whether these bare words come next; then they are behind."""
        if any(self.peek(ahead).word != word for ahead, word in enumerate(words)):
            return False
        self._at += len(words)
        return True

    def take_one(self, *words: str) -> str:
        """Which of these bare words comes next, and is behind then; empty where none does."""
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

    def expect(self, *words: str) -> None:
        """:raises UnreadableError: something else comes next."""
        if not self.take(*words):
            raise UnreadableError(f"{' '.join(words)} is missing")

    def name(self) -> str:
        """:raises UnreadableError: what comes next is no name."""
        token = self.next()
        if not token.name:
            raise UnreadableError(f"{token.text!r} is no name")
        return token.name

    def table(self, database: str) -> Name:
        """A table's name; in ``database`` where it does not say in which.

        :raises UnreadableError: what comes next is no name.
        """
        first = self.name()
        return (first, self.name()) if self.symbol(".") else (database, first)

    def group(self) -> "Cursor":
        """What is in the parentheses that come next.

        :raises UnreadableError: none do, or they are never closed.
        """
        if not self.symbol("("):
            raise UnreadableError("( is missing")
        begin, depth = self._at, 1
        while depth:
            text = self.next().text
            depth += (text == "(") - (text == ")")
        return Cursor(self._tokens[begin : self._at - 1])

    def expression(self) -> Sequence[Token]:
        """One token, or a whole group of them with its parentheses."""
        begin = self._at
        if self.peek().text == "(":
            self.group()
        else:
            self.next()
        return self._tokens[begin : self._at]

    def wait(self) -> None:
        """MariaDB's deadline with locks: ``WAIT 5``, ``NOWAIT``."""
        if not self.take("NOWAIT") and self.peek().word == "WAIT" and self.peek(1).kind is TokenKind.NUMBER:
            self._at += 2

    def parts(self) -> "list[Cursor]":
        """The rest, cut at its commas, but for those in parentheses."""
        depth, cuts = 0, [self._at]
        for at in range(self._at, len(self._tokens)):
            text = self._tokens[at].text
            depth += (text == "(") - (text == ")")
            if depth == 0 and text == ",":
                cuts.append(at + 1)
        ends = [cut - 1 for cut in cuts[1:]] + [len(self._tokens)]
        return [Cursor(self._tokens[begin:end]) for begin, end in zip(cuts, ends, strict=True)]
