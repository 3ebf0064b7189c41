"""A client of the signed interface: a key with a certificate of its own making, and RFC 9421 over each request."""

import base64
import datetime
import hashlib
import time

import requests
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature


class Signer(requests.auth.AuthBase):
    """Signs as the standard's text says: label sig1 over method, target URI and, with a body, its digest."""

    def __init__(self, key):
        self.key = key
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.keyid = hashlib.sha256(public).hexdigest()

    @classmethod
    def new(cls):
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def load(cls, path):
        return cls(serialization.load_pem_private_key(path.read_bytes(), None))

    def save(self, path):
        path.touch(mode=0o600)
        path.write_bytes(
            self.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )

    def certificate(self):
        """Signed by itself, in base64 of DER."""
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "openapi")])
        now = datetime.datetime.now(datetime.timezone.utc)
        made = (
            x509.CertificateBuilder()
            .subject_name(name).issuer_name(name).public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + datetime.timedelta(days=1))
            .sign(self.key, hashes.SHA256())
        )
        return base64.b64encode(made.public_bytes(serialization.Encoding.DER)).decode()

    def __call__(self, request):
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        components = ['"@method"', '"@target-uri"']
        lines = [f'"@method": {request.method}', f'"@target-uri": {request.url}']
        if body:
            digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
            request.headers["Content-Digest"] = f"sha-256=:{digest}:"
            components.append('"content-digest"')
            lines.append(f'"content-digest": sha-256=:{digest}:')
        parameters = f'({" ".join(components)});created={int(time.time())};keyid="{self.keyid}"'
        lines.append(f'"@signature-params": {parameters}')
        signed = self.key.sign("\n".join(lines).encode(), ec.ECDSA(hashes.SHA256()))
        r, s = decode_dss_signature(signed)
        raw = base64.b64encode(r.to_bytes(32, "big") + s.to_bytes(32, "big")).decode()
        request.headers["Signature-Input"] = f"sig1={parameters}"
        request.headers["Signature"] = f"sig1=:{raw}:"
        return request


def onboard(signer, url):
    """The id that the server gives to this client."""
    request = {
        "apiVersion": "onboarding.margo.org/v1alpha1", "kind": "OnboardingRequest", "certificate": signer.certificate(),
    }
    answer = requests.post(f"{url}/api/v1/onboarding", json=request, auth=signer, verify=False, timeout=10)
    if answer.status_code != 201:
        raise SystemExit(f"openapi: the signed client was not taken in: {answer.status_code} {answer.text}")
    return answer.json()["clientId"]
