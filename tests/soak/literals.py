"""Random literals that both SQL dialects write alike."""

import random
import uuid

_WORDS = (
    "a",
    "B",
    "abc",
    "Zz 9",
    "end ",
    " x",
    "é",
    "ß",
    "0",
    "1.50",
    "-7",
    "12:30:00",
    "2021-03-04",
    "true",
    "{}",
    "",
)


def integer(rng: random.Random, low: int, high: int) -> str:
    edges = [low, high, 0, 1, *([-1] if low < 0 else [])]
    return str(rng.choice(edges) if rng.random() < 0.1 else rng.randint(max(low, -300), min(high, 300)))


def decimal(rng: random.Random, precision: int, scale: int) -> str:
    digits = rng.randint(0, 10 ** min(precision, rng.randint(1, precision)) - 1)
    sign = rng.choice(["", "-"])
    return f"{sign}{digits // 10**scale}.{digits % 10**scale:0{scale}d}" if scale > 0 else f"{sign}{digits}"


def real(rng: random.Random) -> str:
    return repr(rng.choice([0.0, 1.0, 1.5, -2.25, 1e10, 3.0e-5, rng.uniform(-1e6, 1e6)]))


def word(rng: random.Random, longest: int) -> str:
    text = rng.choice(_WORDS) if rng.random() < 0.5 else "".join(rng.choices("abcXYZ 019_-", k=rng.randint(0, 12)))
    return text[: max(1, longest)]


def text(rng: random.Random, longest: int) -> str:
    """Return a quoted text."""
    return "'" + word(rng, longest).replace("'", "''") + "'"


def long_text(rng: random.Random) -> str:
    """Return a quoted text that is sometimes too long to be stored in the row itself."""
    return "'" + rng.choice("xyz") * rng.randint(3_000, 9_000) + "'" if rng.random() < 0.03 else text(rng, 40)


def hexadecimal(rng: random.Random, longest: int) -> str:
    return rng.randbytes(rng.randint(0, min(longest, 12))).hex()


def date(rng: random.Random) -> str:
    return f"{rng.randint(1971, 2037):04d}-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}"


def time(rng: random.Random, digits: int) -> str:
    whole = f"{rng.randint(0, 23):02d}:{rng.randint(0, 59):02d}:{rng.randint(0, 59):02d}"
    return f"{whole}.{rng.randint(0, 10**digits - 1):0{digits}d}" if digits else whole


def identifier(rng: random.Random) -> str:
    """Return one of a few UUIDs, so that keys collide."""
    return str(uuid.UUID(int=rng.randint(1, 400)))


def address(rng: random.Random) -> str:
    return ".".join(str(rng.randint(1, 250)) for _ in range(4))
