"""Starts a server with one device, and lets schemathesis ask it for anything that its OpenAPI documents describe.

    fuzz.py PROGRAMS SPEC [NAME …]

PROGRAMS is the directory of margrave and margrave-agent, SPEC that of the specification's digests, NAME one of the
interfaces below; all of them when none is given. Every answer must be documented and none may be a 5xx; the server
must be the same process afterwards, and its log must not speak of anything that broke.

What differs between an interface and its published description is in hooks.py, in one place, with the reason.
"""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import warnings

import requests

from signer import Signer, onboard

HERE = pathlib.Path(__file__).resolve().parent
# Printed, and the same in every run: a failure must come back when it is looked for.
SEED = int(os.environ.get("MARGRAVE_OPENAPI_SEED", "20261116"))
# Everything together takes four minutes; a run that takes three times as long hangs.
SECONDS_MAX = 720
PATIENCE = 30

# Just below what one device may ask: faster, and most requests would be answered 429 and tell nothing.
PACE = ["--rate-limit", "19/s"]

COMPOSE = "services:\n  main:\n    image: ${MARGRAVE_REGISTRY}/pretended:1\n    environment:\n      GREETING: ${GREETING}\n"
DESCRIPTION = """apiVersion: v1
id: hello
metadata:
  name: Hello
  version: "1.0.0"
  catalog:
    organization:
      - name: Margrave tests
deploymentProfiles:
  - type: compose
    id: hello-compose
    components:
      - name: main
        properties:
          repository: oci://margrave/hello/main
          revision: 1.0.0
          timeout: 1m0s
parameters:
  greeting:
    value: hello
    targets:
      - pointer: GREETING
        components: [main]
configuration:
  sections:
    - name: General
      settings:
        - parameter: greeting
          name: Greeting
          schema: text
  schema:
    - name: text
      dataType: string
      maxLength: 200
"""


def say(text):
    print(f"openapi: {text}", flush=True)


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def wait_for(what, look):
    deadline = time.monotonic() + PATIENCE
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise SystemExit(f"openapi: waited {PATIENCE} s in vain: {what}")
        time.sleep(0.05)


class Plant:
    """A server and a device that joined it, in a directory of their own."""

    def __init__(self, programs, directory):
        self.programs = programs
        self.directory = directory
        self.web, self.device, self.local, self.signed = free_port(), free_port(), free_port(), free_port()
        self.processes = []
        self.log = directory / "server.log"

    def start(self, name, arguments):
        with open(self.directory / f"{name}.log", "ab") as log:
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def margrave(self, *arguments):
        environment = {**os.environ, "MARGRAVE_CONTEXT": str(self.directory / "server/context.json")}
        done = subprocess.run(
            [self.programs / "margrave", *arguments], env=environment, capture_output=True, text=True
        )
        return done if done.returncode == 0 else None

    def json(self, *arguments):
        done = self.margrave(*arguments, "--json")
        if done is None:
            raise SystemExit(f"openapi: margrave {' '.join(arguments)} failed")
        return json.loads(done.stdout)

    def up(self):
        self.server = self.start(
            "server",
            [
                self.programs / "margrave", "serve", "--air-gapped", "--data", self.directory / "server", "--name", "127.0.0.1",
                "--listen", f"127.0.0.1:{self.web}", "--device-listen", f"127.0.0.1:{self.device}",
                "--local-listen", f"127.0.0.1:{self.local}",
                "--signed-listen", f"127.0.0.1:{self.signed}", "--signed-accept", "any",
            ],
        )
        wait_for("the server answers", lambda: self.margrave("status", "--json"))
        context = json.loads((self.directory / "server/context.json").read_text())
        self.token = context["token"]
        # A device that runs, so that there is something to look at, and one that is only asked for.
        for name in ("line-1", "line-2"):
            self.join(name)
        simulation = self.directory / "simulation.json"
        simulation.write_text('{"start": {"leastMillis": 10}, "pull": {"leastMillis": 10}}')
        self.start(
            "line-1",
            [
                self.programs / "margrave-agent", "run", "--data", self.directory / "line-1",
                "--runtime", "simulated", "--simulation", simulation,
            ],
        )
        package = self.directory / "package"
        (package / "components/main").mkdir(parents=True)
        (package / "margo.yaml").write_text(DESCRIPTION)
        (package / "components/main/compose.yaml").write_text(COMPOSE)
        if self.margrave("package", "add", str(package)) is None:
            raise SystemExit("openapi: the package could not be added")
        self.report_capabilities("line-2")
        wait_for("line-1 says what it is", lambda: self.json("device", "show", "line-1").get("capabilities"))
        self.json("deploy", "hello", "--to", "line-1", "--to", "line-2")

    def join(self, name):
        token = self.json("device", "token", "--name", name)
        subprocess.run(
            [
                self.programs / "margrave-agent", "join", token["url"], "--token", token["token"],
                "--pin", token["pin"], "--data", self.directory / name,
            ],
            check=True, capture_output=True,
        )
        identity = json.loads((self.directory / name / "identity.json").read_text())
        (self.directory / f"{name}.crt").write_text("".join(identity["certificates"]))
        key = self.directory / f"{name}.key"
        key.touch(mode=0o600)
        key.write_text(identity["key"])

    def ask(self, name, method, path, body=None):
        """As a device asks; the answer's body."""
        import ssl

        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        request = urllib.request.Request(f"https://127.0.0.1:{self.device}{path}", method=method, data=body)
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, context=context) as answer:
            return answer.read()

    def report_capabilities(self, name):
        properties = {
            "id": name, "vendor": "Acme", "modelNumber": "M", "serialNumber": "1",
            "cpus": [{"cores": 4, "architecture": "amd64"}], "memory": "4Gi", "storage": "10Gi", "peripherals": [],
            "interfaces": [], "otelCollector": True, "supportedRuntimes": ["oci"],
            "supportedDeploymentTypes": ["compose"],
        }
        self.ask(name, "PUT", f"/api/v1/capabilities/{name}", json.dumps({"properties": properties}).encode())

    def down(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()

    def complaints(self):
        found = []
        if self.server.poll() is not None:
            found.append(f"the server ended with {self.server.returncode}")
        lines = self.log.read_text(errors="replace").splitlines()
        found += [line for line in lines if "panicked" in line or " ERROR " in line]
        return found[:20]


# Checks that ask for more than is promised. positive_data_acceptance: what fits a schema can still break a rule that no
# schema can state (the package must exist, the device must be known), and is then answered 404, 409 or 422.
EXCLUDED = ["positive_data_acceptance"]
# ignored_auth: who shows wrong tokens one after the other is answered later and later, up to 5 s, which are minutes for all
# operations; that none answers without a token is tested for every route (tests/it/operator.rs, access.rs).
EXCLUDED_OF = {"operator": ["ignored_auth"]}


def operator(plant, spec):
    return [
        f"http://127.0.0.1:{plant.local}/api/operator/v1/openapi.json",
        "--header", f"Authorization: Bearer {plant.token}",
        "--max-examples", "40",
    ]


def device(plant, spec):
    manifest = json.loads(plant.ask("line-2", "GET", "/api/v1/deployments"))
    os.environ["MARGRAVE_OPENAPI_KNOWN"] = json.dumps(manifest)
    return [
        str(spec / "openapi/workload-management-api-1.0.0-rc.3.yaml"),
        "--url", f"https://127.0.0.1:{plant.device}", "--tls-verify", "false",
        "--request-cert", str(plant.directory / "line-2.crt"),
        "--request-cert-key", str(plant.directory / "line-2.key"),
        "--max-examples", "60", *PACE,
    ]


def signed(plant, spec):
    url = f"https://127.0.0.1:{plant.signed}"
    signer = Signer.new()
    client = onboard(signer, url)
    signer.save(plant.directory / "signed.key")
    properties = {
        "id": "signed-1", "vendor": "Acme", "modelNumber": "M", "serialNumber": "1", "roles": ["Standalone Device"],
        "resources": {
            "cpu": {"cores": 4, "architectures": ["amd64"]}, "memory": "4Gi", "storage": "10Gi", "peripherals": [],
            "interfaces": [],
        },
    }
    body = {"apiVersion": "device.margo.org/v1alpha1", "kind": "DeviceCapabilitiesManifest", "properties": properties}
    path = f"{url}/api/v1/clients/{client}"
    told = requests.post(f"{path}/capabilities/signed-1", json=body, auth=signer, verify=False, timeout=10)
    told.raise_for_status()
    plant.json("deploy", "hello", "--to", "signed-1", "--name", "hello-signed")
    manifest = requests.get(f"{path}/deployments", auth=signer, verify=False, timeout=10)
    manifest.raise_for_status()
    os.environ["MARGRAVE_OPENAPI_KNOWN"] = json.dumps({**manifest.json(), "client": client})
    os.environ["MARGRAVE_OPENAPI_KEY"] = str(plant.directory / "signed.key")
    return [
        str(spec / "openapi/workload-management-api-1.0.0-signed.yaml"),
        "--url", url, "--tls-verify", "false", "--max-examples", "40", *PACE,
    ]


def trust(plant, spec):
    return [
        str(spec / "openapi/trust-bundle-api-1.0.0-rc.3.yaml"),
        "--url", f"https://127.0.0.1:{plant.web}", "--tls-verify", "false",
        "--max-examples", "40",
    ]


# The operator comes last, because it may well retire the devices that the others speak for.
INTERFACES = {"device": device, "signed": signed, "trust": trust, "operator": operator}


def main():
    programs, spec = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    names = sys.argv[3:] or list(INTERFACES)
    # We know that nobody checks the server's certificate here; TLS has tests of its own.
    warnings.filterwarnings("ignore", message="Unverified HTTPS request")
    unknown = [name for name in names if name not in INTERFACES]
    if unknown:
        raise SystemExit(f"openapi: there is no interface {unknown[0]}; there are {', '.join(INTERFACES)}")
    directory = pathlib.Path(tempfile.mkdtemp(prefix="margrave-openapi."))
    plant = Plant(programs, directory)
    failed = []
    deadline = time.monotonic() + SECONDS_MAX
    try:
        plant.up()
        for name in INTERFACES.keys() - set(names):
            say(f"{name} is not asked; name it to ask it")
        for name in names:
            say(f"{name}, seed {SEED}")
            arguments = INTERFACES[name](plant, spec)
            environment = {
                **os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HERE), "MARGRAVE_OPENAPI": name,
                "PYTHONWARNINGS": "ignore",
            }
            began = time.monotonic()
            try:
                done = subprocess.run(
                    [
                        pathlib.Path(sys.executable).parent / "schemathesis", "run", *arguments,
                        "--checks", "all", "--exclude-checks", ",".join(EXCLUDED + EXCLUDED_OF.get(name, [])), "--seed", str(SEED),
                        "--continue-on-failure", "--no-color", "--warnings", "off",
                        "--suppress-health-check", "all", "--generation-database", "none",
                        "--request-timeout", "10", "--output-truncate", "false",
                    ],
                    env=environment, cwd=directory, timeout=max(1, deadline - time.monotonic()),
                )
                if done.returncode != 0:
                    failed.append(f"{name}: schemathesis ended with {done.returncode}")
            except subprocess.TimeoutExpired:
                failed.append(f"{name}: not done within {SECONDS_MAX} s for all")
            say(f"{name} took {time.monotonic() - began:.0f} s")
            complaints = plant.complaints()
            if complaints:
                failed.append(f"{name}: " + "\n  ".join(complaints))
                break
    finally:
        plant.down()
        if failed:
            say(f"the logs are kept in {directory}")
        else:
            shutil.rmtree(directory)
    for failure in failed:
        say(failure)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
