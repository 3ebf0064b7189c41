"""What schemathesis has to know of our interfaces beyond their published descriptions.

Loaded through SCHEMATHESIS_HOOKS; MARGRAVE_OPENAPI says which interface is being asked. The standard's documents are
read where they lie and patched in memory, never copied. docs/hostility.md lists the answers that are added.
"""

import json
import os
import pathlib
import zlib

import schemathesis

from signer import Signer

INTERFACE = os.environ["MARGRAVE_OPENAPI"]
PROBLEM = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetail"}}}


def problem(description):
    return {"description": description, "content": PROBLEM}


# Answers that the standard's documents leave out, and that every HTTP server with limits gives.
ADDED = {
    "429": "Too many requests of this client; Retry-After says when to come back (MI-G2-190)",
    "503": "The server is busy or stopping; Retry-After says when to come back (MI-G2-190)",
}
ADDED_WITH_BODY = {
    "408": "The body did not arrive in time",
    "413": "The body is larger than any real one",
}


def or_null(member):
    # The older document is of OpenAPI 3.0, which has no type "null".
    return {"allOf": [member], "nullable": True} if INTERFACE == "signed" else {"anyOf": [member, {"type": "null"}]}


def allow_null(schemas, schema):
    """What is optional may be null, which counts as left out: several languages write it so."""
    schema = schemas[schema["$ref"].rsplit("/", 1)[1]] if "$ref" in schema else schema
    required = schema.get("required", [])
    for name, member in schema.get("properties", {}).items():
        allow_null(schemas, member)
        if name not in required:
            schema["properties"][name] = or_null(member)
    if "items" in schema:
        allow_null(schemas, schema["items"])


# The signed document names these for some operations and forgets them for others (MI-G1-066).
SIGNED_ADDED = {
    "304": "Representation not modified",
    "400": "The signature's headers cannot be read",
    "401": "The signature does not verify",
    "403": "The client is not accepted",
    "404": "No such client, or nothing of its own under this name",
}
SIGNED_ADDED_WITH_BODY = {
    "200": "Repeated (late snapshots, MI-G1-160, MI-G1-182)",
    "201": "First of its kind (late snapshots)",
    "422": "The body breaks a rule",
}


@schemathesis.hook
def before_load_schema(context, raw_schema):
    if INTERFACE == "device":
        schemas = raw_schema["components"]["schemas"]
        # DM-087: three members of another object, listed as if they were this one's.
        manifest = schemas["UnsignedAppStateManifest"]
        manifest["required"] = [name for name in manifest["required"] if "." not in name]
        # DM-073: a member is required that does not exist. The document itself is described as text, although its
        # schema is in the same file; with that one in its place, what we serve is really looked at.
        metadata = schemas["appDeploymentMetadata"]
        metadata["required"] = [name for name in metadata["required"] if name in metadata["properties"]]
        for body in ("DeviceCapabilitiesManifest", "DeploymentStatusManifest"):
            allow_null(schemas, schemas[body])
        # AMB-20: a document may be revalidated like everything else that has an ETag.
        document = raw_schema["paths"]["/api/v1/deployments/{deploymentId}/{digest}"]["get"]
        whole = {"$ref": "#/components/schemas/appDeploymentManifest"}
        document["responses"]["200"]["content"]["application/yaml"]["schema"] = whole
        document["responses"]["304"] = {"description": "Representation not modified"}
        for path, operations in raw_schema["paths"].items():
            for operation in operations.values():
                for status, description in ADDED.items():
                    operation["responses"].setdefault(status, problem(description))
                if "requestBody" in operation:
                    for status, description in ADDED_WITH_BODY.items():
                        operation["responses"].setdefault(status, problem(description))

    if INTERFACE == "signed":
        # The scheme in the document is a header that no text knows; RFC 9421 is what is meant (its own TODO says so).
        raw_schema.pop("security")
        raw_schema["components"].pop("securitySchemes")
        schemas = raw_schema["components"]["schemas"]
        # AMB-18: no deployments, no bundle.
        schemas["DeploymentBundleRef"]["nullable"] = True
        # Both are called URIs, and both have a pattern that only paths fit.
        for reference in ("DeploymentBundleRef", "DeploymentManifestRef"):
            schemas[reference]["properties"]["url"].pop("format")
        # As with the newer interface: the document's schema is there, so it is looked at.
        document = raw_schema["paths"]["/api/v1/clients/{clientId}/deployments/{deploymentId}/{digest}"]["get"]
        whole = {"$ref": "#/components/schemas/appDeploymentManifest"}
        document["responses"]["200"]["content"]["application/yaml"]["schema"] = whole
        for body in ("DeviceCapabilitiesManifest", "DeploymentStatusManifest"):
            allow_null(schemas, schemas[body])
        for path, operations in raw_schema["paths"].items():
            for method, operation in operations.items():
                operation.pop("security", None)
                answers = operation["responses"]
                for status, description in {**SIGNED_ADDED, **ADDED}.items():
                    answers.setdefault(status, {"description": description})
                if "requestBody" in operation:
                    for status, description in {**SIGNED_ADDED_WITH_BODY, **ADDED_WITH_BODY}.items():
                        answers.setdefault(status, {"description": description})
                # 1.13: errors carry the members of both generations, as problems.
                for status, answer in answers.items():
                    if status.startswith("4"):
                        answer.pop("content", None)


def dotted(value):
    return isinstance(value, str) and any(part in ("", ".", "..") for part in value.split("/"))


@schemathesis.hook
def filter_path_parameters(context, path_parameters):
    # The client library rewrites dot segments before it sends them, so the server would be asked for something else;
    # tests/e2e/hostile sends them byte by byte.
    return not any(dotted(value) for value in (path_parameters or {}).values())


def as_list(request):
    request.headers["Accept"] = "application/json"
    return request


@schemathesis.hook
def before_call(context, case, kwargs):
    if INTERFACE == "signed":
        kwargs["auth"] = SIGNER
    # A stream of events does not end, and a client that reads to the end would wait; the list of events does.
    if case.path.endswith("/events"):
        kwargs["auth"] = as_list


# What line-2 is really given, so that some requests reach what lies behind the first check.
KNOWN = json.loads(os.environ.get("MARGRAVE_OPENAPI_KNOWN", "null"))
SIGNER = Signer.load(pathlib.Path(os.environ["MARGRAVE_OPENAPI_KEY"])) if INTERFACE == "signed" else None


@schemathesis.hook
def map_case(context, case):
    """Lets half of the well-formed requests name something that exists, and say the same in path and body."""
    path, body = case.path_parameters, case.body
    if not path or not KNOWN or not is_positive(case, "path"):
        return case
    # Behind another's id there is nothing but 404; a few of those are enough.
    if "clientId" in path and zlib.crc32(repr(path).encode(errors="replace")) % 8:
        path["clientId"] = KNOWN["client"]
    if zlib.crc32(repr((path, body)).encode(errors="replace")) % 2:
        return case
    entry = KNOWN["deployments"][0]
    if "deploymentId" in path:
        path["deploymentId"] = entry["deploymentId"]
        if isinstance(body, dict) and is_positive(case, "body"):
            body["deploymentId"] = entry["deploymentId"]
    if "digest" in path:
        path["digest"] = entry["digest"] if "deploymentId" in path else KNOWN["bundle"]["digest"]
    if "deviceId" in path and isinstance(body, dict) and is_positive(case, "body"):
        body["properties"]["id"] = path["deviceId"]
    return case


def is_positive(case, location):
    """Whether this part of a request is as the document describes it."""
    for where, component in (case.meta.components if case.meta else {}).items():
        if where.value == location and not component.mode.is_positive:
            return False
    return True
