"""A client of the signed device interface (g1) that shares no code with us.

Signs as the public reference client does: label `sig`, `@method @target-uri @authority` and, with a body,
`content-digest`; `created`, `keyid` (SHA-256 of the public key), no `alg`. The signatures are made by the PyPI package
`http-message-signatures`, keys and certificates by `cryptography`, the rest by Python's own library.

    signed_client.py DIR make KIND                 a key and a self-signed certificate (p256, ed25519, rsa)
    signed_client.py DIR fingerprint               of its key, as an operator compares it
    signed_client.py DIR root URL                  fetches the server's root certificate, and remembers it
    signed_client.py DIR onboard URL ENCODING      asks to be let in (pem, base64-pem, base64-der)
    signed_client.py DIR capabilities URL DEVICE   says what it is
    signed_client.py DIR sync URL                  polls, fetches documents and bundle, verifies every digest
    signed_client.py DIR report URL STATE          reports this state of everything it was given

Each prints one JSON object.
"""

import base64
import datetime
import hashlib
import http.client
import io
import json
import pathlib
import ssl
import sys
import tarfile
import urllib.parse

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from http_message_signatures import HTTPMessageSigner, HTTPSignatureKeyResolver, algorithms

ALGORITHMS = {
    "p256": algorithms.ECDSA_P256_SHA256,
    "ed25519": algorithms.ED25519,
    "rsa": algorithms.RSA_V1_5_SHA256,
}
MANIFEST_TYPE = "application/vnd.margo.manifest.v1+json"


class Request:
    """What the signing package wants to see of a request."""

    def __init__(self, method, url, headers):
        self.method, self.url, self.headers = method, url, headers


class Client:
    def __init__(self, directory):
        self.directory = pathlib.Path(directory)

    def file(self, name):
        return self.directory / name

    def state(self):
        return json.loads(self.file("state.json").read_text()) if self.file("state.json").exists() else {}

    def keep(self, **changes):
        self.file("state.json").write_text(json.dumps(self.state() | changes))

    def make(self, kind):
        key = {
            "p256": lambda: ec.generate_private_key(ec.SECP256R1()),
            "ed25519": ed25519.Ed25519PrivateKey.generate,
            "rsa": lambda: rsa.generate_private_key(65537, 2048),
        }[kind]()
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"foreign {kind} device")])
        now = datetime.datetime.now(datetime.timezone.utc)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=365))
            .sign(key, None if kind == "ed25519" else hashes.SHA256())
        )
        pkcs8 = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.directory.mkdir(parents=True, exist_ok=True)
        self.file("key.pem").write_bytes(pkcs8)
        self.file("certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.keep(kind=kind)
        return self.fingerprint()

    def certificate(self):
        return x509.load_pem_x509_certificate(self.file("certificate.pem").read_bytes())

    def keyid(self):
        spki = self.certificate().public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return hashlib.sha256(spki).hexdigest()

    def fingerprint(self):
        return {"fingerprint": self.keyid()}

    def send(self, method, base, path, body=None, headers=None, signed=True, verified=True):
        url = base + path
        headers = dict(headers or {})
        if body is not None:
            headers["Content-Type"] = "application/json"
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            headers["Content-Digest"] = f"sha-256=:{digest}:"
        if signed:
            self.sign(Request(method, url, headers), body is not None)
        parts = urllib.parse.urlsplit(url)
        if verified:
            context = ssl.create_default_context(cafile=str(self.file("root.pem")))
        else:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        connection = http.client.HTTPSConnection(parts.hostname, parts.port, timeout=60, context=context)
        try:
            connection.request(method, parts.path, body=body, headers=headers)
            answer = connection.getresponse()
            return answer.status, dict((name.lower(), value) for name, value in answer.getheaders()), answer.read()
        finally:
            connection.close()

    def sign(self, request, with_body):
        keyid, key = self.keyid(), self.file("key.pem").read_bytes()

        class Keys(HTTPSignatureKeyResolver):
            def resolve_private_key(self, key_id):
                return key

        covered = ["@method", "@target-uri", "@authority"] + (["content-digest"] if with_body else [])
        HTTPMessageSigner(
            signature_algorithm=ALGORITHMS[self.state()["kind"]], key_resolver=Keys()
        ).sign(request, key_id=keyid, label="sig", include_alg=False, covered_component_ids=covered)

    def root(self, base):
        status, _, body = self.send("GET", base, "/api/v1/onboarding/certificate", signed=False, verified=False)
        assert status == 200, status
        pem = base64.b64decode(json.loads(body)["certificate"], validate=True)
        self.file("root.pem").write_bytes(pem)
        root = x509.load_pem_x509_certificate(pem)
        spki = root.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return {"pin": base64.b64encode(hashlib.sha256(spki).digest()).decode()}

    def onboard(self, base, encoding):
        pem = self.file("certificate.pem").read_bytes()
        der = self.certificate().public_bytes(serialization.Encoding.DER)
        certificate = {
            "pem": pem.decode(),
            "base64-pem": base64.b64encode(pem).decode(),
            "base64-der": base64.b64encode(der).decode(),
        }[encoding]
        wish = {
            "apiVersion": "onboarding.margo.org/v1alpha1",
            "kind": "OnboardingRequest",
            "certificate": certificate,
        }
        status, _, body = self.send("POST", base, "/api/v1/onboarding", json.dumps(wish).encode())
        answer = json.loads(body)
        if status == 201:
            self.keep(client=answer["clientId"])
        return {"status": status, "client": answer.get("clientId"), "error": answer.get("error")}

    def path(self, rest):
        return f"/api/v1/clients/{self.state()['client']}/{rest}"

    def capabilities(self, base, device):
        self.keep(device=device)
        said = {
            "apiVersion": "device.margo.org/v1alpha1",
            "kind": "DeviceCapabilitiesManifest",
            "properties": {
                "id": device, "vendor": "Foreign", "modelNumber": "F1", "serialNumber": "0815",
                "roles": ["Standalone Device"],
                "resources": {
                    "cpu": {"cores": 4, "architectures": ["x86_64"]}, "memory": "8Gi", "storage": "64Gi",
                    "peripherals": [], "interfaces": [{"type": "ethernet"}],
                },
            },
        }
        status, _, _ = self.send("POST", base, self.path(f"capabilities/{device}"), json.dumps(said).encode())
        return {"status": status}

    def sync(self, base):
        state = self.state()
        headers = {"Accept": MANIFEST_TYPE}
        if "etag" in state:
            headers["If-None-Match"] = state["etag"]
        status, answered, body = self.send("GET", base, self.path("deployments"), headers=headers)
        if status == 304:
            return {"status": status, "version": state["version"]}
        assert status == 200, (status, body)
        assert answered["content-type"] == MANIFEST_TYPE, answered
        assert answered["etag"] == f'"{digest(body)}"', answered
        manifest = json.loads(body)
        assert manifest["manifestVersion"] > state.get("version", 0), manifest
        documents = {}
        for entry in manifest["deployments"]:
            assert entry["url"] == self.path(f"deployments/{entry['deploymentId']}/{entry['digest']}"), entry
            status, answered, document = self.send("GET", base, entry["url"])
            assert status == 200 and answered["content-type"] == "application/yaml", (status, answered)
            assert digest(document) == entry["digest"], "the document is not what the manifest says"
            documents[entry["deploymentId"]] = document.decode()
        bundle = manifest["bundle"]
        if bundle is not None:
            assert bundle["url"] == self.path(f"bundles/{bundle['digest']}"), bundle
            status, answered, archive = self.send("GET", base, bundle["url"])
            assert status == 200 and answered["content-type"] == bundle["mediaType"], (status, answered)
            assert digest(archive) == bundle["digest"], "the bundle is not what the manifest says"
            with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as opened:
                held = {digest(opened.extractfile(member).read()) for member in opened.getmembers()}
            assert held == {entry["digest"] for entry in manifest["deployments"]}, held
        self.keep(
            etag=f'"{digest(body)}"', version=manifest["manifestVersion"], deployments=sorted(documents)
        )
        return {"status": 200, "version": manifest["manifestVersion"], "documents": documents}

    def report(self, base, reported):
        statuses = []
        for deployment in self.state()["deployments"]:
            said = {
                "apiVersion": "deployment.margo.org/v1alpha1",
                "kind": "DeploymentStatusManifest",
                "deploymentId": deployment,
                "status": {"state": reported},
                "components": [{"name": "web", "state": reported}],
            }
            path = self.path(f"deployments/{deployment}/status")
            statuses.append(self.send("POST", base, path, json.dumps(said).encode())[0])
        return {"statuses": statuses}


def digest(content):
    return "sha256:" + hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    directory, verb, *arguments = sys.argv[1:]
    print(json.dumps(getattr(Client(directory), verb)(*arguments)))
