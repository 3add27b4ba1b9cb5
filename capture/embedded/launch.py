"""Launcher: becomes another program that dies with its parent. A script of ``children.spawn``, never imported.

The steps between fork and exec (drop root, ask the kernel for a signal when the parent dies) run here, in a new
interpreter, because running them in a forked copy of a process with many threads (gRPC, Spark) can deadlock. Standard
library only: it runs with ``-I -S``.

    launch.py PARENT_PID DEATH_SIGNAL USER REACH PROGRAM ARGUMENT...

USER ``-``: keep the user. REACH ``1``: keep the capability to traverse directories that USER may not enter (a checkout
below /root), and no other of root's.
"""

import ctypes
import os
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_KEEPCAPS = 8
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_CAP_DAC_OVERRIDE = 1
_CAP_VERSION_3 = 0x20080522


def main(arguments: list[str]) -> None:
    parent, death_signal, user, reach, *argv = arguments
    if user != "-":
        _become(user, reach=reach == "1")
    if sys.platform == "linux":
        # AFTER the change of user, which clears this setting
        _prctl(_PR_SET_PDEATHSIG, int(death_signal))
    if os.getppid() != int(parent):
        sys.exit("the parent died before its child had started")
    os.execv(argv[0], argv)


def _become(user: str, *, reach: bool) -> None:
    import pwd

    entry = pwd.getpwnam(user)
    if reach:
        _prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    if reach:
        _keep_only(_CAP_DAC_OVERRIDE)


def _keep_only(capability: int) -> None:
    """Reduce all capability sets to this one, and let it survive exec."""
    bit = 1 << capability
    header = (ctypes.c_uint32 * 2)(_CAP_VERSION_3, 0)
    # two 32-bit halves of (effective, permitted, inheritable)
    data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    if ctypes.CDLL(None, use_errno=True).capset(header, data) != 0:
        sys.exit(f"cannot keep the capability to enter directories: {os.strerror(ctypes.get_errno())}")
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def _prctl(option: int, value: int, extra: int = 0) -> None:
    zero = ctypes.c_ulong(0)
    result = ctypes.CDLL(None, use_errno=True).prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(extra), zero, zero)
    if result != 0:
        sys.exit(f"prctl({option}) failed: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(sys.argv[1:])
