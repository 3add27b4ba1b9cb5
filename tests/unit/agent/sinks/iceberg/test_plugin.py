"""The plugin without its extra: named with its cure, in no other's way."""

import importlib
import importlib.util
from typing import Any

import pytest

from agent.sinks.iceberg import plugin


def test_a_missing_package_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = importlib.util.find_spec

    def find_spec(name: str, *rest: Any) -> Any:
        return None if name == "pyiceberg" else inner(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", find_spec)
    with pytest.raises(ImportError, match=r"pip install 'weir-cdc\[iceberg\]'"):
        importlib.reload(plugin)
    monkeypatch.undo()
    importlib.reload(plugin)
