"""Files in deploy/: settings, options and paths that they name exist."""

import re
import tomllib
from pathlib import Path

import pytest

from capture.config import ServerSettings, load_server_settings

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCUMENTS = {each["kind"]: each for each in yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text())}


def test_settings_of_the_manifest_are_read(tmp_path: Path) -> None:
    text = DOCUMENTS["ConfigMap"]["data"]["weir.toml"]
    tomllib.loads(text)
    (tmp_path / "weir.toml").write_text(text)
    assert load_server_settings(tmp_path / "weir.toml").insecure


def test_ports_and_options_of_the_manifest() -> None:
    pod = DOCUMENTS["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    options = [name.lstrip("-").partition("=")[0] for name in container["args"][1:]]
    assert {name.replace("-", "_") for name in options} <= {"config", *ServerSettings.model_fields}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {port["name"]: port["port"] for port in DOCUMENTS["Service"]["spec"]["ports"]}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_variables_and_options_of_image_and_unit() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    variables = {name.lower() for name in re.findall(r"\bWEIR_(\w+)=", image)}
    assert variables
    assert variables <= set(ServerSettings.model_fields)
    unit = (DEPLOY / "weir.service").read_text()
    options = set(re.findall(r" --([a-z-]+)", unit))
    assert {name.replace("-", "_") for name in options} <= {"config", *ServerSettings.model_fields}
