"""Packages with a plugin, as ``pip install`` leaves them: a module, and metadata that names it."""

from pathlib import Path

SINK = """
from agent.ports.capabilities import Capabilities, Guarantee
from agent.ports.plugin import SinkPlugin

PLUGIN = SinkPlugin(
    summary="a toy",
    schemes=("{scheme}",),
    open=lambda uri, scope: (uri, scope),
    capabilities=Capabilities(guarantee=Guarantee.NONE),
)
"""


def install(site: Path, package: str, *, group: str, name: str, text: str | None, attribute: str = "PLUGIN") -> None:
    """Below ``site``. ``text``: of the module, which is not there where that is None."""
    module = package.replace("-", "_")
    metadata = site / f"{module}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{attribute}\n")
    if text is not None:
        (site / f"{module}.py").write_text(text)
