"""Server processes: says which one it is that others wait for."""


def described(pid: str | None, **names: str | None) -> str:
    """Return a process with what is known of it, such as its ``user``."""
    known = ", ".join(f"{what} {name!r}" for what, name in names.items() if name)
    return f"process {pid} ({known})"
