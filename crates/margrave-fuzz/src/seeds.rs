//! What fuzzing starts from: small inputs of our own making, and the specification's examples where they lie.

use std::io;
use std::path::{Path, PathBuf};

use margrave_core::digest::Digest;
use margrave_core::moment::Moment;
use margrave_identity::authority::Authority;
use margrave_identity::certificate::pem_of;
use margrave_identity::csr::Csr;
use margrave_identity::key::PrivateKey;
use margrave_wire::g2;
use margrave_wire::problem::{Problem, ProblemType};
use serde_json::json;

use crate::Target;
use crate::requests::{ASSIGNMENT, BUNDLE, DOCUMENT, MANIFEST};

/// Writes all seeds of a target into a directory, each named by its digest; returns how many there are.
pub fn write(target: &Target, directory: &Path) -> io::Result<usize> {
    std::fs::create_dir_all(directory)?;
    let seeds = all(target)?;
    for seed in &seeds {
        std::fs::write(directory.join(Digest::of(seed).hex()), seed)?;
    }
    Ok(seeds.len())
}

/// Our own seeds, and the examples that this target reads.
pub fn all(target: &Target) -> io::Result<Vec<Vec<u8>>> {
    let mut seeds = (target.seeds)();
    if let Some(examples) = examples() {
        let mut folders = vec![examples];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder)? {
                let path = entry?.path();
                let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                if path.is_dir() {
                    folders.push(path);
                } else if target.examples.iter().any(|start| name.starts_with(start)) {
                    seeds.push(std::fs::read(path)?);
                }
            }
        }
    }
    seeds.retain(|seed| seed.len() <= target.input_bytes_max);
    Ok(seeds)
}

/// The specification's examples, which lie beside the repository and not in it; without them there are fewer seeds.
fn examples() -> Option<PathBuf> {
    let spec = match std::env::var_os("MARGRAVE_SPEC") {
        Some(path) => PathBuf::from(path),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../../shared/spec"),
    };
    Some(spec.join("examples")).filter(|path| path.is_dir())
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

pub(crate) fn manifests() -> Vec<Vec<u8>> {
    let (document, bundle) = (Digest::of(DOCUMENT), Digest::of(BUNDLE));
    let full = json!({
        "manifestVersion": 42,
        "bundle": {
            "mediaType": margrave_wire::bundle::MEDIA_TYPE, "digest": bundle, "sizeBytes": 1024,
            "url": g2::manifest::bundle_path(&bundle),
        },
        "deployments": [{
            "deploymentId": ASSIGNMENT, "digest": document, "sizeBytes": 42,
            "url": format!("/prefix/api/v1/deployments/{ASSIGNMENT}/{}", document.to_string().replace(':', "%3A")),
        }],
    });
    vec![
        MANIFEST.to_vec(),
        full.to_string().into_bytes(),
        br#"{"manifestVersion":18446744073709551615,"bundle":null,"deployments":[]}"#.to_vec(),
        br#"{"manifestVersion":0,"bundle":{},"deployments":[{}]}"#.to_vec(),
    ]
}

pub(crate) fn capabilities() -> Vec<Vec<u8>> {
    let full = json!({
        "properties": {
            "id": "line-1", "vendor": "Acme", "modelNumber": "M", "serialNumber": "1",
            "cpus": [{ "cores": 4.5, "architecture": "amd64" }], "memory": "4Gi", "storage": "10Gi",
            "peripherals": [{ "type": "gpu", "manufacturer": "N", "model": "T4" }],
            "interfaces": [{ "type": "ethernet" }, { "type": "wifi" }], "otelCollector": true,
            "supportedRuntimes": ["oci", "custom"], "supportedDeploymentTypes": ["compose", "helm"],
            "x-vendor-extensions": { "a": 1 },
        },
        "labels": { "site": "north", "line": 7, "spare": true, "zones": ["a", "b"], "floors": [1, 2.5] },
        "x-margrave-extensions": { "simulated": true, "agentVersion": "0.1.0" },
    });
    vec![
        full.to_string().into_bytes(),
        br#"{"properties":{"id":"gw/child","vendor":"","modelNumber":"","serialNumber":""}}"#.to_vec(),
        br#"{"properties":{"id":"a","roles":[],"resources":{"cpu":{"architecture":"x86_64"}}}}"#.to_vec(),
    ]
}

pub(crate) fn statuses() -> Vec<Vec<u8>> {
    let full = json!({
        "deploymentId": ASSIGNMENT, "deviceId": "gw/child", "adoptedManifestVersion": 3,
        "status": { "state": "failed", "error": { "code": "C", "source": "compose", "message": "it broke" } },
        "components": [
            { "name": "main", "state": "installed" },
            { "name": "side", "state": "failed", "error": { "code": "", "source": "", "message": "no" } },
        ],
        "x-margrave-extensions": {
            "state": "FAILED", "sequence": 9, "at": 1_800_000_000_000_u64, "document": Digest::of(DOCUMENT),
            "attempt": 3, "nextTry": 1_800_000_060_000_u64, "reason": "later",
        },
    });
    let least = json!({
        "deploymentId": ASSIGNMENT, "adoptedManifestVersion": 1, "status": { "state": "removed" }, "components": [],
    });
    vec![full.to_string().into_bytes(), least.to_string().into_bytes()]
}

pub(crate) fn problems() -> Vec<Vec<u8>> {
    let mut seeds: Vec<_> = ProblemType::ALL
        .map(|kind| Problem::new(kind, "a reason").at("/api/v1/deployments").to_json())
        .into();
    seeds.push(Problem::too_many_requests(7, "slower").to_json());
    seeds.push(Problem::internal(30).to_json());
    seeds.extend(texts(&[
        r#"{"type":"about:blank","title":"Teapot","status":418,"errors":[{"field":"a"}],"x":null}"#,
        r#"{"type":"https://margo.org/docs/errors/wfm-client-relationship-retired","title":"","status":403,"retryable":true,"retryAfterSeconds":18446744073709551615,"backoffStrategy":"fixed"}"#,
    ]));
    seeds
}

pub(crate) fn yaml() -> Vec<Vec<u8>> {
    texts(&[
        "a: 1\nb: [x, \"y\", 'z', ~, true, 1.5e3, 0x1F, 010]\nc: {d: &e {f: g}, <<: *e}\n",
        "- no\n- \"on\"\n- |\n  two\n  lines\n- >-\n  folded\n  text\n- ''\n",
        "? long\n: !!str 010\n# comment\n'quoted key': \"\\u0007\\n\\t\\\"\"\n",
        "%YAML 1.2\n---\na: [1, 2, {b: c}]\n...\n",
        "[a, b, c]",
        "\u{feff}text",
    ])
}

const DESCRIPTION: &str = "apiVersion: v1
id: hello
metadata:
  name: Hello
  version: \"1.0.0\"
  catalog:
    application: {icon: ./resources/icon.png, tagline: Hi, tags: [a]}
    author: [{name: A, email: a@example.org}]
    organization: [{name: Acme, site: https://example.org}]
deploymentProfiles:
  - type: compose
    id: hello-compose
    components:
      - name: main
        properties: {repository: oci://margrave/hello/main, revision: 1.0.0, timeout: 8m30s, wait: true}
    deviceConstraints:
      capacityRequirements: {cpu: {cores: 1.5, architectures: [amd64]}, memory: 512Mi, storage: 1Gi}
      eligibilityRules:
        - propertySelector:
            matchExpressions:
              - {key: /vendor, operator: In, values: [Acme]}
              - {key: /cpus, operator: ContainsAny, itemSelector: {matchExpressions: [{key: /cores, operator: Gt, values: [1]}]}}
          labelSelector: {matchExpressions: [{key: site, operator: Exists}]}
  - type: helm
    id: hello-helm
    components:
      - name: chart
        properties: {repository: oci://margrave/hello/chart, revision: 1.0.0}
    x-acme-extensions: {a: [1, 2]}
parameters:
  greeting: {value: hello, targets: [{pointer: GREETING, components: [main]}]}
  rate: {value: 1.5, targets: [{pointer: ENV.RATE, components: [main]}, {pointer: a.b, components: [chart]}]}
  list: {value: [1, 2], targets: [{pointer: LIST, components: [main]}]}
configuration:
  sections:
    - name: General
      settings:
        - {parameter: greeting, name: Greeting, description: D, immutable: true, schema: text}
        - {parameter: rate, name: Rate, schema: rate}
  schema:
    - {name: text, dataType: string, minLength: 1, maxLength: 20, regexMatch: \"^[a-z]+$\", allowEmpty: true}
    - {name: rate, dataType: double, minValue: 0, maxValue: 9.5, maxPrecision: 3}
";

pub(crate) fn compose_files() -> Vec<Vec<u8>> {
    let short = "services:\n  a:\n    ports: [\"127.0.0.1:8000-8001:80-81/udp\", \"[::1]:1:1\", 80]\n    volumes: [\"ext:/x:ro\", /srv:/x]\n\
                 volumes:\n  ext: {external: {name: plant}}\n";
    let long = "x-a: &a {ports: [{target: 80, published: \"8080\", host_ip: 10.0.0.1}]}\nservices:\n  a: {<<: *a, profiles: []}\n  b:\n    \
                volumes: [{type: bind, source: /srv, target: /x, read_only: false}, disk:/y]\nvolumes:\n  disk: {driver_opts: {o: bind, \
                device: /srv/disk}}\n";
    let images = "services:\n  a: {image: 'h:5000/a/b:1@sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a'}\n  b: {image: nginx}\n  \
                  c: {image: '${MARGRAVE_REGISTRY}/a:${TAG}', pull_policy: never}\n";
    vec![short.into(), long.into(), images.into()]
}

pub(crate) fn descriptions() -> Vec<Vec<u8>> {
    texts(&[
        DESCRIPTION,
        "apiVersion: v1\nid: a\nmetadata: {name: A, version: 1.0, catalog: {organization: [{name: O}]}}\n",
        "apiVersion: margo.org/v1-alpha1\nkind: ApplicationDescription\n",
    ])
}

pub(crate) fn documents() -> Vec<Vec<u8>> {
    texts(&[
        "id: 0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11
metadata: {name: hello, namespace: margrave-hello, deviceId: gw/*}
spec:
  applicationId: hello
  deploymentProfile:
    type: compose
    components:
      - name: main
        properties: {repository: oci://margrave/hello/main, revision: 1.0.0, wait: true, timeout: 8m30s}
        x-acme-extensions: {a: 1}
    deviceConstraints:
      capacityRequirements: {memory: 512Mi}
  parameters:
    greeting: {value: \"hello\", targets: [{pointer: GREETING, components: [main]}]}
    list: {value: [a, 1, 2.5, true], targets: [{pointer: LIST, components: [main]}]}
  x-margrave-extensions:
    deployment: hello
    packageVersion: 1.0.0
    pins: {main: \"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\"}
    images: {main: {\"web:1\": \"sha256:44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\"}}
",
        "apiVersion: application.margo.org/v1alpha1\nkind: ApplicationDeployment\nmetadata: {annotations: {id: x, applicationId: y}}\nspec: {}\n",
    ])
}

/// A tar of these entries: name, kind, link, content.
fn tar_of(entries: &[(&str, tar::EntryType, &str, &[u8])]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (name, kind, link, content) in entries {
        let mut header = tar::Header::new_ustar();
        let bytes = header.as_mut_bytes();
        // Straight into the bytes: the library itself refuses the names that an attacker would use.
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        bytes[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_size(content.len() as u64);
        header.set_cksum();
        archive.append(&header, *content).expect("memory takes every write");
    }
    archive.into_inner().expect("memory takes every write")
}

/// As they are, with a good gzip around them, and as gzip.
fn packings(tars: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for tar in tars {
        let mut gzip = flate2::write::GzEncoder::new(vec![b'z'], flate2::Compression::best());
        io::Write::write_all(&mut gzip, &tar).expect("memory takes every write");
        seeds.push(gzip.finish().expect("memory takes every write"));
        for how in *b"tr" {
            seeds.push([&[how][..], &tar].concat());
        }
    }
    seeds
}

pub(crate) fn bundles() -> Vec<Vec<u8>> {
    use tar::EntryType::{Directory, Regular, Symlink};
    let own = margrave_wire::bundle::write(&[(
        margrave_core::id::AssignmentId::parse(ASSIGNMENT).expect("an id"),
        DOCUMENT,
    )]);
    let mut seeds = packings(vec![
        tar_of(&[("a.yaml", Regular, "", b"one"), ("./b.yaml", Regular, "", b"two")]),
        tar_of(&[("dir", Directory, "", b""), ("dir/a.yaml", Regular, "", b"one")]),
        tar_of(&[("../a.yaml", Regular, "", b"one"), ("b", Symlink, "/etc/passwd", b"")]),
        tar_of(&[]),
    ]);
    seeds.push([&b"z"[..], &own].concat());
    seeds
}

pub(crate) fn compose_archives() -> Vec<Vec<u8>> {
    use tar::EntryType::{Directory, Fifo, GNULongName, Link, Regular, Symlink, XHeader};
    packings(vec![
        tar_of(&[
            ("app/", Directory, "", b""),
            ("app/compose.yaml", Regular, "", b"services: {}\n"),
            ("app/config/a.conf", Regular, "", b"x"),
            ("app/link", Symlink, "config/a.conf", b""),
            ("app/hard", Link, "app/config/a.conf", b""),
        ]),
        tar_of(&[("app/compose.yaml", Regular, "", b"x"), ("app/out", Symlink, "../../secret", b"")]),
        tar_of(&[("app/compose.yaml", Regular, "", b"x"), ("app/../../secret", Regular, "", b"y")]),
        tar_of(&[
            ("app/compose.yaml", Regular, "", b"x"),
            ("app/d", Symlink, ".", b""),
            ("app/d/e", Symlink, "..", b""),
        ]),
        tar_of(&[
            ("app/compose.yaml", Regular, "", b"x"),
            ("app/h", Link, "secret", b""),
            ("/abs", Regular, "", b""),
        ]),
        tar_of(&[("././@LongLink", GNULongName, "", b"app/compose.yaml\0"), ("x", Regular, "", b"x")]),
        tar_of(&[("pax", XHeader, "", b"25 path=app/compose.yaml\n"), ("x", Regular, "", b"x")]),
        tar_of(&[("app/compose.yaml", Fifo, "", b"")]),
    ])
}

pub(crate) fn package_manifests() -> Vec<Vec<u8>> {
    use margrave_oci::manifest::{ANNOTATION_TITLE, Descriptor, ImageIndex, ImageManifest};
    use margrave_oci::package::{DESCRIPTION_TYPE, PACKAGE_TYPE};
    let description =
        Descriptor::of(DESCRIPTION_TYPE, DESCRIPTION.as_bytes()).annotated(ANNOTATION_TITLE, "margo.yaml");
    let icon = Descriptor::of("application/vnd.margo.app.icon.v1+png", b"png")
        .annotated(ANNOTATION_TITLE, "./resources/icon.png");
    let outside = Descriptor::of("text/plain", b"x").annotated(ANNOTATION_TITLE, "../../etc/passwd");
    let package = ImageManifest::artifact(PACKAGE_TYPE, vec![description.clone(), icon]);
    let bad = ImageManifest::artifact(PACKAGE_TYPE, vec![description.clone(), outside]);
    let archive = Descriptor::of("application/vnd.oci.image.layer.v1.tar+gzip", b"x");
    let compose =
        ImageManifest::artifact("application/vnd.org.margo.component.compose.v1+json", vec![archive]);
    let mut seeds = vec![package.to_bytes(), bad.to_bytes(), compose.to_bytes()];
    seeds.push(ImageIndex::of(vec![description]).to_bytes());
    seeds
}

/// Within the lifetime of every certificate that is made here.
const NOW: Moment = Moment(1_800_000_000_000);

fn authority() -> Authority {
    Authority::create("plant.example".parse().expect("a trust domain"), NOW).expect("keys can be made")
}

pub(crate) fn requests_for_certificates() -> Vec<Vec<u8>> {
    let key = PrivateKey::generate().expect("keys can be made");
    let csr = Csr::make(&key).expect("a request can be made");
    let named = rcgen::CertificateParams::new(vec!["anything.example".to_owned()]).expect("a name");
    let pair = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("keys can be made");
    let foreign = named.serialize_request(&pair).expect("a request can be made");
    vec![csr.to_pem().into_bytes(), csr.der().to_vec(), foreign.der().to_vec()]
}

pub(crate) fn certificates() -> Vec<Vec<u8>> {
    let authority = authority();
    let root = authority.anchor().certificate().clone();
    let csr = Csr::make(&PrivateKey::generate().expect("keys can be made")).expect("a request can be made");
    let (wfm, client) = ("line-7".parse().expect("a server id"), "press.42".parse().expect("a client id"));
    let lifetime = std::time::Duration::from_secs(3600);
    let issued = authority.issue_client(&wfm, &client, &csr, NOW, lifetime).expect("it can be issued").pem();
    let leaf = margrave_identity::certificate::chain_from_pem(&issued.concat()).expect("our own chain");
    vec![leaf[0].to_vec(), root.to_vec(), issued.concat().into_bytes(), pem_of(&root).into_bytes()]
}

pub(crate) fn trust_bundles() -> Vec<Vec<u8>> {
    let domain = "plant.example".parse().expect("a trust domain");
    let bundle = margrave_identity::bundle::Bundle::of_anchor(
        domain,
        authority().anchor(),
        4,
        std::time::Duration::from_secs(3600),
    );
    let mut seeds = vec![serde_json::to_vec(&bundle.to_wire()).expect("a key set is plain data")];
    seeds.extend(texts(&[
        r#"{"keys":[{"use":"jwt-svid","kty":"EC"},{"use":"x509-svid","kty":"RSA","n":"AQ","e":"AQAB","x5c":["AAAA"]}]}"#,
        r#"{"trustDomain":"plant.example","trustBundleUri":"https://mis.plant.example/b.json"}"#,
    ]));
    seeds
}

pub(crate) fn names() -> Vec<Vec<u8>> {
    let mut seeds = texts(&[
        "line-1",
        "gw/path1/dev~A",
        "client:gw/child",
        "1.0.0",
        "hello",
        ASSIGNMENT,
        "spiffe://plant.example/margo/wfm/line-7",
        "spiffe://plant.example/margo/wfm/line-7/client/press.42",
        "oci://margrave/hello/main:1.0.0",
        "registry.example:5000/a/b:1.0.0",
        "localhost/a",
        "[::1]:5000/a",
    ]);
    let digest = Digest::of(DOCUMENT).to_string();
    seeds.push(digest.clone().into_bytes());
    seeds.push(format!("oci://registry.example/a@{digest}").into_bytes());
    seeds
}

pub(crate) fn ranges() -> Vec<Vec<u8>> {
    let tag = format!("\"{}\"", Digest::of(b"0123456789abcdefghijklmnopqrstuvwxyz"));
    let mut seeds = texts(&[
        "GET\nbytes=0-9",
        "GET\nbytes=30-",
        "GET\nbytes=-5",
        "GET\nbytes=5-3",
        "HEAD\nbytes=-0\n\n*",
        "GET\nbytes=0-18446744073709551615",
        "GET\nbytes=0-1,3-4\n\n\n*/*\n0-99",
    ]);
    seeds.push(format!("GET\nbytes=1-2\n{tag}").into_bytes());
    seeds.push(format!("GET\n\n\nW/{tag}, \"x\"").into_bytes());
    seeds
}

pub(crate) fn requests() -> Vec<Vec<u8>> {
    let tag = format!("\"{}\"", Digest::of(MANIFEST));
    let (document, bundle) = (Digest::of(DOCUMENT), Digest::of(BUNDLE));
    let mut seeds = texts(&[
        "GET /api/v1/deployments\naccept: text/html, application/vnd.margo.manifest.v1+json;q=0.1",
        "GET /api/v1/deployments\naccept: */*;q=0",
        "GET /api/v1/deployments?x=y\nprefer: respond-async, wait=10; foo=\"a,b\"\nif-none-match: \"x\"",
        "HEAD /api/v1/deployments\nif-none-match: *",
        "DELETE /api/v1/capabilities/gw%2Fchild",
        "PATCH /api/v1/capabilities/line-1",
        "OPTIONS *",
        "GET /api/v2/deployments",
    ]);
    seeds.push(
        format!("GET /api/v1/deployments\nif-none-match: W/{tag}\nprefer: wait=99999999999").into_bytes(),
    );
    seeds.push(format!("GET /api/v1/deployments/{ASSIGNMENT}/{document}\nrange: bytes=0-1").into_bytes());
    seeds.push(format!("GET /api/v1/bundles/{}", bundle.to_string().replace(':', "%3a")).into_bytes());
    for body in capabilities() {
        let head = &b"PUT /api/v1/capabilities/line-1\ncontent-type: application/json\n\n"[..];
        seeds.push([head, &body].concat());
    }
    for body in statuses() {
        let head =
            format!("POST /api/v1/deployments/{ASSIGNMENT}/status\ncontent-type: application/json\n\n");
        seeds.push([head.as_bytes(), &body].concat());
    }
    seeds
}

/// What a client of the older generation signs, in both of the ways that exist, and what others may send.
pub(crate) fn signatures() -> Vec<Vec<u8>> {
    let digest = margrave_wire::signature::content_digest(DOCUMENT);
    let mut seeds = texts(&[
        "GET\n/api/v1/clients/c-17/deployments?x=%41\nsig1=(\"@method\" \"@target-uri\");created=1766000000;keyid=\"k\"\nsig1=:AQID:\n",
        "GET\n/x\nsig=(\"@method\" \"@target-uri\" \"@authority\");created=1766000000;expires=1766000300;keyid=\"k\";alg=\"ed25519\";nonce=\"n\"\nsig=:AQID:\n\nhost: wfm.example",
        "GET\n/x\nproxy=(\"@path\" \"@query\" \"@scheme\" \"@request-target\");tag=t;x=?0;y=1.5, sig1=()\nsig1=:AA==:, proxy=:AA==:\n",
        "GET\n/x\na=(\"x-two\";sf \"@query-param\";name=\"a\");created=-1\na=:AA==:\n\nx-two: a, b",
    ]);
    seeds.push(
        format!(
            "POST\n/api/v1/clients/c-17/deployments/{ASSIGNMENT}/status\nsig1=(\"@method\" \"@target-uri\" \"Content-Digest\");created=1766000000;keyid=\"k\"\nsig1=:AQID:\n{digest}"
        )
        .into_bytes(),
    );
    seeds
}

pub(crate) fn signed_manifests() -> Vec<Vec<u8>> {
    let client = margrave_core::id::ClientId::parse("c-17").expect("a client id");
    let blob = |content: &[u8]| margrave_core::manifest::Blob {
        digest: Digest::of(content),
        size: Some(content.len() as u64),
    };
    let id = margrave_core::id::AssignmentId::parse(ASSIGNMENT).expect("an id");
    let entry = margrave_core::manifest::Entry { id, document: blob(DOCUMENT) };
    let manifest =
        margrave_core::manifest::Manifest::new(7, Some(blob(BUNDLE)), vec![entry]).expect("a manifest");
    let mut seeds = manifests();
    seeds.push(margrave_wire::g1::manifest::write(&client, &manifest));
    seeds
}

pub(crate) fn signed_capabilities() -> Vec<Vec<u8>> {
    let roles = json!({
        "apiVersion": "device.margo.org/v1alpha1", "kind": "DeviceCapabilitiesManifest",
        "properties": {
            "id": "line-1", "vendor": "Acme", "modelNumber": "M", "serialNumber": "1",
            "roles": ["Standalone Device", "Gateway"],
            "resources": {
                "cpu": { "cores": 4, "architecture": "x86_64" }, "memory": "4Gi", "storage": "10Gi",
                "peripherals": [{ "type": "gpu" }], "interfaces": [{ "type": "ethernet" }],
            },
        },
    });
    let mut seeds = capabilities();
    seeds.push(roles.to_string().into_bytes());
    seeds
}

pub(crate) fn signed_statuses() -> Vec<Vec<u8>> {
    let full = json!({
        "apiVersion": "deployment.margo.org/v1alpha1", "kind": "DeploymentStatusManifest", "deploymentId": ASSIGNMENT,
        "deviceId": "gw/*", "status": { "state": "installed", "error": { "code": "", "message": "" } },
        "components": [{ "name": "main", "state": "installed" }],
        "x-margrave-extensions": { "adoptedManifestVersion": 9 },
    });
    let mut seeds = statuses();
    seeds.push(full.to_string().into_bytes());
    seeds
}

pub(crate) fn signed_documents() -> Vec<Vec<u8>> {
    let mut seeds = documents();
    seeds.extend(texts(&["apiVersion: application.margo.org/v1alpha1
kind: ApplicationDeployment
id: 0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11
metadata:
  annotations: {applicationId: hello, id: 0d5f6c1e-6a0a-4f0e-9b57-2c1c8e0f4a11}
  name: hello
  namespace: margrave-hello
spec:
  deploymentProfile:
    type: helm.v3
    components:
      - name: chart
        properties: {repository: oci://margrave/hello/chart, revision: 1.0.0, wait: true, timeout: 8m30s}
  parameters:
    rate: {value: 1.5, targets: [{pointer: a.b, components: [chart]}]}
"]));
    seeds
}

pub(crate) fn onboardings() -> Vec<Vec<u8>> {
    use margrave_wire::g1::onboarding;
    let mut seeds = texts(&[r#"{"clientId":"c-17","client_id":"c-17"}"#, r#"{"error":"Client rejected"}"#]);
    for certificate in certificates() {
        match std::str::from_utf8(&certificate) {
            Ok(pem) => {
                seeds.push(json!({ "public_certificate": pem }).to_string().into_bytes());
                seeds.push(onboarding::write_root(pem));
            }
            Err(_) => seeds.push(onboarding::write_request(&certificate)),
        }
    }
    let pair = rcgen::KeyPair::generate().expect("keys can be made");
    let own = rcgen::CertificateParams::new(vec!["device.example".to_owned()]).expect("a name");
    let own = own.self_signed(&pair).expect("a certificate can be made");
    seeds.push(onboarding::write_request(own.der()));
    seeds
}

pub(crate) fn signed_requests() -> Vec<Vec<u8>> {
    let client = crate::signed_requests::CLIENT;
    let (document, bundle) = (Digest::of(DOCUMENT), Digest::of(BUNDLE));
    let base = format!("/api/v1/clients/{client}");
    let json = "content-type: application/json\n\n";
    let mut requests = vec![
        b"GET /api/v1/onboarding/certificate".to_vec(),
        format!("GET {base}/deployments\naccept: */*\nif-none-match: *\nprefer: wait=5").into_bytes(),
        format!("GET {base}/deployments/{ASSIGNMENT}/{document}").into_bytes(),
        format!("GET {base}/bundles/{bundle}").into_bytes(),
        format!("DELETE {base}/capabilities/line-1").into_bytes(),
        b"GET /api/v1/clients/other/deployments".to_vec(),
        b"GET /api/v1/deployments".to_vec(),
    ];
    for body in signed_capabilities() {
        requests.push([format!("PUT {base}/capabilities/line-1\n{json}").as_bytes(), &body].concat());
        requests.push([format!("POST {base}/capabilities\n{json}").as_bytes(), &body].concat());
    }
    for body in signed_statuses() {
        let head = format!("POST {base}/deployments/{ASSIGNMENT}/status\n{json}");
        requests.push([head.as_bytes(), &body].concat());
    }
    for body in onboardings() {
        requests.push([format!("POST /api/v1/onboarding\n{json}").as_bytes(), &body].concat());
    }
    let mut seeds = Vec::new();
    for request in &requests {
        for how in [&b"s"[..], b"u", b"t0", b"t1", b"t2", b"t3"] {
            seeds.push([how, request].concat());
        }
    }
    seeds
}
