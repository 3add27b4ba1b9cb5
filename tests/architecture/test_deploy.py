"""Files in deploy/: settings, options and paths that they name exist; manifests are what the chart renders."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from capture.config import ServerSettings, load_server_settings

yaml = pytest.importorskip("yaml")

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "helm" / "weir"
MANIFEST = DEPLOY / "kubernetes.yaml"
#: the version of Kubernetes that manifests are rendered for
KUBERNETES = "1.34"
PODS = {
    "spark.master": "k8s://https://kubernetes.default.svc",
    "tlsSecret": "weir-tls",
    "etcdUrls": "{http://etcd:2379}",
    "storeSecret": "weir-store",
}


def documents(text: str) -> dict[tuple[str, str], Any]:
    found = [each for each in yaml.safe_load_all(text) if each]
    return {(each["kind"], each["metadata"]["name"]): each for each in found}


def rendered(**values: str) -> str:
    """:raises subprocess.CalledProcessError: helm refuses."""
    if shutil.which("helm") is None:
        pytest.skip("no helm: go install helm.sh/helm/v3/cmd/helm@latest")
    given = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    command = ["helm", "template", "weir", str(CHART), "--kube-version", KUBERNETES, *given]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


PLAIN = documents(MANIFEST.read_text())


def check_settings(text: str, directory: Path) -> ServerSettings:
    tomllib.loads(text)
    (directory / "weir.toml").write_text(text)
    return load_server_settings(directory / "weir.toml")


def check_captures(found: dict[tuple[str, str], Any]) -> None:
    pod = found["StatefulSet", "weir"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    options = [name.lstrip("-").partition("=")[0] for name in container["args"][1:]]
    assert {name.replace("-", "_") for name in options} <= {"config", *ServerSettings.model_fields}
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {port["name"]: port["port"] for port in found["Service", "weir"]["spec"]["ports"]}
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    selector = found["Service", "weir"]["spec"]["selector"]
    labels = found["StatefulSet", "weir"]["spec"]["template"]["metadata"]["labels"]
    assert selector.items() <= labels.items()


def test_settings_of_the_manifest_are_read(tmp_path: Path) -> None:
    settings = check_settings(PLAIN["ConfigMap", "weir"]["data"]["weir.toml"], tmp_path)
    assert settings.insecure
    servers = PLAIN["StatefulSet", "weir-etcd"]["spec"]
    assert len(settings.etcd) == servers["replicas"]


def test_the_manifest_fits_together() -> None:
    check_captures(PLAIN)
    command = PLAIN["StatefulSet", "weir-etcd"]["spec"]["template"]["spec"]["containers"][0]["command"]
    [members] = [word.partition("=")[2] for word in command if word.startswith("--initial-cluster=")]
    assert [member.partition("=")[0] for member in members.split(",")] == ["weir-etcd-0", "weir-etcd-1", "weir-etcd-2"]


def test_the_manifest_is_what_the_chart_renders() -> None:
    assert documents(rendered()) == PLAIN


def test_captures_that_start_executors_as_pods(tmp_path: Path) -> None:
    found = documents(rendered(**PODS))
    check_captures(found)
    settings = check_settings(found["ConfigMap", "weir"]["data"]["weir.toml"], tmp_path)
    assert settings.tls_key_file is not None
    assert settings.spark["spark.kubernetes.executor.secretKeyRef.AWS_ACCESS_KEY_ID"] == "weir-store:AWS_ACCESS_KEY_ID"
    assert settings.spark["spark.authenticate"] == "true"
    assert ("Role", "weir-spark") in found
    assert ("StatefulSet", "weir-etcd") not in found


def test_pods_without_encryption_are_refused_unless_that_is_said() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        rendered(insecure="false")
    assert "give tlsSecret, or insecure: true" in caught.value.stderr


@pytest.mark.parametrize("values", [{}, PODS], ids=["plain", "pods"])
def test_manifests_are_of_the_schema_of_kubernetes(values: dict[str, str], tmp_path: Path) -> None:
    validate = shutil.which("kubernetes-validate")
    if validate is None:
        pytest.skip("no kubernetes-validate: pip install kubernetes-validate")
    file = tmp_path / "manifest.yaml"
    file.write_text(rendered(**values) if values else MANIFEST.read_text())
    command = [validate, "--strict", "--kubernetes-version", KUBERNETES, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_variables_and_options_of_image_and_unit() -> None:
    image = (DEPLOY / "Dockerfile").read_text()
    variables = {name.lower() for name in re.findall(r"\bWEIR_(\w+)=", image)}
    assert variables
    assert variables <= set(ServerSettings.model_fields)
    for source in re.findall(r"^COPY (?:--chmod=\d+ )?(deploy/\S+)", image, re.MULTILINE):
        assert (DEPLOY.parent / source).is_file()
    unit = (DEPLOY / "weir.service").read_text()
    options = set(re.findall(r" --([a-z-]+)", unit))
    assert {name.replace("-", "_") for name in options} <= {"config", *ServerSettings.model_fields}
