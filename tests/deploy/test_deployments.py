"""What is in deploy/: valid by the real schemas of Kubernetes and of Compose, and true to the program that it runs.

The schemas come with packages (kubernetes-validate, check-jsonschema), so nothing is fetched here.
"""

from __future__ import annotations

import copy
import json
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml  # type: ignore[import-untyped]
from typer.main import get_command

from evenflow.cli.app import assembled
from evenflow.cli.console import TOKEN
from evenflow.cli.health_endpoints import place_of
from evenflow.cli.profiles import FILE, read_profiles
from evenflow.cli.worker import load
from evenflow.urls import check_url

DEPLOY = Path(__file__).parents[2] / "deploy"
VERSIONS = ("1.29", "1.32", kubernetes_validate.latest_version())
SECONDS = {"s": 1, "m": 60}


def documents(file: str = "kubernetes.yaml") -> dict[str, Any]:
    found = list(yaml.safe_load_all((DEPLOY / file).read_text()))
    return {document["kind"]: document for document in found}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def compose_schema() -> dict[str, Any]:
    text = files("check_jsonschema.builtin_schemas").joinpath("vendor", "compose-spec.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    return schema


def pod() -> dict[str, Any]:
    found: dict[str, Any] = documents()["Deployment"]["spec"]["template"]["spec"]
    return found


def options_of(arguments: list[str]) -> dict[str, Any]:
    """As the program itself reads them, after what the image begins with."""
    entry = json.loads(re.findall(r"^ENTRYPOINT (.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)[0])
    assert entry[:2] == ["evenflow", "run"]
    program: Any = get_command(assembled(["run"]))
    given: dict[str, Any] = program.commands["run"].make_context("run", [*entry[2:], *arguments]).params
    return given


@pytest.fixture
def stop_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """How long the application's processor may take to drain."""
    monkeypatch.setenv("SOURCE_URL", "hub:homes")
    monkeypatch.setenv("STORE_URL", "memory:")
    monkeypatch.syspath_prepend(DEPLOY)
    return load("alerts:processor").settings.stop_s


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["Deployment", "PodDisruptionBudget", "HorizontalPodAutoscaler"])
def test_the_manifests_are_valid(kind: str, version: str) -> None:
    kubernetes_validate.validate(documents()[kind], version, strict=True)


@pytest.mark.parametrize(
    "path", [("replicas", "four"), ("template", "spec", "containers", 0, "livenesProbe", {}), ("selector", 5)]
)
def test_a_mistake_in_a_manifest_is_found(path: tuple[Any, ...]) -> None:
    wrong = copy.deepcopy(documents()["Deployment"])
    at = wrong["spec"]
    for step in path[:-2]:
        at = at[step]
    at[path[-2]] = path[-1]
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_the_parts_of_the_manifest_speak_of_the_same_pods() -> None:
    found = documents()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"] == labels
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"] == labels
    target = found["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", found["Deployment"]["metadata"]["name"])


def test_pods_have_the_time_to_drain_and_are_asked_where_they_answer(stop_s: float) -> None:
    (container,) = pod()["containers"]
    options = options_of(container["args"])
    assert pod()["terminationGracePeriodSeconds"] > options["deadline"] > stop_s
    host, port = place_of(options["health"])
    assert host == "0.0.0.0", "whoever asks is not in the pod"
    (named,) = container["ports"]
    assert named["containerPort"] == port
    probes = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in probes.values()} == {named["name"]}
    assert [probe["path"] for probe in probes.values()] == ["/live", "/ready", "/live"]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_the_manifests_of_the_console_are_valid(kind: str, version: str) -> None:
    kubernetes_validate.validate(documents("console.yaml")[kind], version, strict=True)


def test_the_console_serves_where_it_is_asked_and_finds_its_profile() -> None:
    found = documents("console.yaml")
    template, service = found["Deployment"]["spec"]["template"], found["Service"]["spec"]
    (container,) = template["spec"]["containers"]
    assert container["image"] == pod()["containers"][0]["image"]
    assert "console" in re.findall(r"evenflow\[(.*)\]", (DEPLOY / "Dockerfile").read_text())[0].split(",")
    program: Any = get_command(assembled(["console"]))
    assert container["command"][:2] == ["evenflow", "console"]
    given = program.commands["console"].make_context("console", container["command"][2:]).params
    (port,) = container["ports"]
    assert (given["host"], given["port"], given["allow_actions"]) == ("0.0.0.0", port["containerPort"], False)
    assert service["selector"] == template["metadata"]["labels"]
    assert service["ports"][0]["targetPort"] == port["name"]
    assert container["env"][0]["name"] == TOKEN
    (volume,), (mount,) = template["spec"]["volumes"], container["volumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], container["workingDir"])
    assert volume["secret"]["items"][0]["path"] == FILE


def test_the_profile_that_the_console_is_given_is_one(tmp_path: Path) -> None:
    """As the file itself says how to write it."""
    commands = re.findall(r"^#   printf '(.*)' >>? evenflow.toml$", (DEPLOY / "console.yaml").read_text(), re.MULTILINE)
    path = tmp_path / FILE
    path.write_text("".join(commands).replace("\\n", "\n"))
    profile = read_profiles(path, tmp_path).find("alerts")
    check_url("store", str(profile.store))
    check_url("source", str(profile.source))


def test_a_rolling_update_starts_a_newcomer_before_it_ends_an_old_one() -> None:
    rolling = documents()["Deployment"]["spec"]["strategy"]["rollingUpdate"]
    assert (rolling["maxSurge"], rolling["maxUnavailable"]) == (1, 0)


def test_what_is_secret_is_only_referred_to() -> None:
    (container,) = pod()["containers"]
    by_name = {one["name"]: one for one in container["env"]}
    assert set(by_name["STORE_URL"]) == {"name", "valueFrom"}
    check_url("source", by_name["SOURCE_URL"]["value"])
    given = compose()["services"]
    assert given["postgres"]["environment"]["POSTGRES_PASSWORD"].startswith("${")
    told = given["alerts"]["environment"]
    assert "$" not in told["STORE_URL"], "a password may have characters that mean something in a URL"
    assert told["PGPASSWORD"].startswith("${POSTGRES_PASSWORD")


def test_the_compose_file_is_valid() -> None:
    jsonschema.validate(compose(), compose_schema())


@pytest.mark.parametrize(("service", "key", "value"), [("alerts", "comand", []), ("kafka", "healthcheck", 5)])
def test_a_mistake_in_the_compose_file_is_found(service: str, key: str, value: object) -> None:
    wrong = compose()
    wrong["services"][service][key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, compose_schema())


def test_the_compose_file_fits_the_program(stop_s: float) -> None:
    alerts = compose()["services"]["alerts"]
    options = options_of(alerts["command"])
    assert seconds(alerts["stop_grace_period"]) > options["deadline"] > stop_s
    assert f":{place_of(options['health'])[1]}/ready" in alerts["healthcheck"]["test"][-1]
    check_url("source", alerts["environment"]["SOURCE_URL"])
    check_url("store", alerts["environment"]["STORE_URL"])
    assert (DEPLOY / alerts["build"]["context"] / alerts["build"]["dockerfile"]).resolve() == DEPLOY / "Dockerfile"
    assert set(alerts["depends_on"]) <= set(compose()["services"])


def test_events_and_what_was_agreed_on_them_are_kept_together() -> None:
    """A topic that is made anew, under checkpoints that are still there, ends every instance with HubReplaced."""
    services, volumes = compose()["services"], compose()["volumes"]
    mounts = {name: one["volumes"][0].split(":") for name, one in services.items() if "volumes" in one}
    assert set(mounts) == {"kafka", "postgres"}
    assert {name for name, _ in mounts.values()} == set(volumes)
    assert mounts["kafka"][1] == services["kafka"]["environment"]["KAFKA_LOG_DIRS"]


def test_the_number_of_pods_is_the_autoscalers() -> None:
    """One in the Deployment, too, would be set with every apply, and move partitions."""
    assert "replicas" not in documents()["Deployment"]["spec"]
    assert documents()["HorizontalPodAutoscaler"]["spec"]["minReplicas"] > 1


def seconds(text: str) -> int:
    return int(text[:-1]) * SECONDS[text[-1]]
