//! The older generation (g1): signatures over requests, its bodies, and how a client is taken in.

use std::collections::BTreeMap;

use margrave_core::id::{ClientId, DeviceId};
use margrave_core::parameters::ParameterValue;
use margrave_identity::message::ClientCertificate;
use margrave_wire::g1::{self, onboarding};
use margrave_wire::signature::{
    Message, SIGNATURE, SIGNATURE_INPUT, Style, Unsigned, content_digest, read, read_content_digest,
};

use crate::bodies::{explained, refused};

/// The lines of an input: method, target, `Signature-Input`, `Signature`, `Content-Digest`, then any headers.
struct Request<'i> {
    method: &'i str,
    path: &'i str,
    query: Option<&'i str>,
    fields: BTreeMap<String, String>,
}

impl<'i> Request<'i> {
    fn read(text: &'i str) -> Option<Self> {
        let mut lines = text.split('\n');
        let (method, target) = (lines.next()?, lines.next()?);
        let (path, query) =
            target.split_once('?').map_or((target, None), |(path, query)| (path, Some(query)));
        let mut fields = BTreeMap::new();
        for name in [SIGNATURE_INPUT, SIGNATURE, "content-digest"] {
            if let Some(value) = lines.next().filter(|value| !value.is_empty()) {
                fields.insert(name.to_owned(), value.to_owned());
            }
        }
        for line in lines.take(20) {
            let (name, value) = line.split_once(':')?;
            fields.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        Some(Request { method, path, query, fields })
    }

    fn lines(&self, name: &str) -> impl Iterator<Item = &[u8]> {
        self.fields.get(name).map(String::as_bytes).into_iter()
    }
}

pub(crate) fn signature(bytes: &[u8]) {
    let Some(request) = std::str::from_utf8(bytes).ok().and_then(Request::read) else { return };
    let target = match request.query {
        Some(query) => format!("https://wfm.example{}?{query}", request.path),
        None => format!("https://wfm.example{}", request.path),
    };
    let field = |name: &str| request.fields.get(name).cloned();
    let message = Message {
        method: request.method,
        scheme: "https",
        authority: "wfm.example",
        target_uri: &target,
        path: request.path,
        query: request.query,
        field: &field,
    };
    match read_content_digest(request.lines("content-digest")) {
        Ok(digest) => assert!(content_digest(b"x").len() >= digest.as_bytes().len(), "a digest has 32 bytes"),
        Err(error) => assert!(error.to_string().len() <= 500),
    }
    match read(request.lines(SIGNATURE_INPUT), request.lines(SIGNATURE)) {
        Ok(signatures) => {
            assert!((1..=8).contains(&signatures.len()), "as many signatures as a request can have");
            for signature in &signatures {
                assert!(!signature.label.is_empty() && signature.bytes.len() <= 1024);
                match signature.bases(&message) {
                    Ok((strict, spelled)) => {
                        for base in [Some(&strict), spelled.as_ref()].into_iter().flatten() {
                            whole_lines(base, signature);
                        }
                        reread(&strict, &message, signature);
                    }
                    Err(error) => assert!(error.to_string().len() <= 500),
                }
            }
        }
        Err(error) => assert!(error.to_string().len() <= 500),
    }
    // What we sign ourselves, we rebuild.
    for style in [Style::Standard, Style::Reference] {
        let with_body = request.fields.contains_key("content-digest");
        let Ok(unsigned) = Unsigned::new(style, &message, with_body, 1_800_000_000, "a \"key\"") else {
            continue;
        };
        let (input, sealed) = unsigned.sealed(b"signature");
        let found =
            read([input.as_bytes()].into_iter(), [sealed.as_bytes()].into_iter()).expect("our own headers");
        let (base, _) = found[0].bases(&message).expect("our own components");
        assert_eq!(base, unsigned.base(), "the bytes that were signed");
        assert_eq!((found[0].created, found[0].bytes.as_slice()), (Some(1_800_000_000), &b"signature"[..]));
    }
}

/// One line for each component and one for the parameters: nothing in a request can add one of its own.
fn whole_lines(base: &[u8], signature: &margrave_wire::signature::Signature) {
    let text = std::str::from_utf8(base).expect("text goes in, text comes out");
    let mut components = 0;
    let (head, parameters) = text.rsplit_once("\"@signature-params\": ").expect("the parameters come last");
    for line in head.lines() {
        assert!(line.starts_with('"') && line.contains("\": "), "{line:?} is no component");
        let name = line[1..].split("\": ").next().unwrap_or_default();
        assert!(signature.covers(name), "{name:?} is not among the covered components");
        components += 1;
    }
    assert!(!parameters.contains('\n') && parameters.starts_with('('), "{parameters:?}");
    assert!(components <= 20, "{components} components");
}

/// What was read can be written and read again, with the same bytes to verify.
fn reread(base: &[u8], message: &Message<'_>, signature: &margrave_wire::signature::Signature) {
    let text = std::str::from_utf8(base).expect("text goes in, text comes out");
    let (_, parameters) = text.rsplit_once("\"@signature-params\": ").expect("the parameters come last");
    let input = format!("{}={parameters}", signature.label);
    let sealed = format!("{}=:AA==:", signature.label);
    let again = read([input.as_bytes()].into_iter(), [sealed.as_bytes()].into_iter())
        .unwrap_or_else(|error| panic!("{input}: {error}"));
    let (second, _) = again[0].bases(message).expect("the same components");
    assert_eq!(second, base, "the parameters stay as they were received");
    assert_eq!((again[0].created, again[0].expires), (signature.created, signature.expires));
}

fn client() -> ClientId {
    ClientId::parse("c-17").expect("a client id")
}

pub(crate) fn manifest(bytes: &[u8]) {
    match g1::manifest::read(&client(), bytes) {
        Ok(listing) => {
            let written = g1::manifest::write(&client(), &listing.manifest);
            let again = g1::manifest::read(&client(), &written).expect("our own manifest can be read");
            assert_eq!(again.manifest.version(), listing.manifest.version());
            let digests = |manifest: &margrave_core::manifest::Manifest| {
                manifest.entries().iter().map(|entry| (entry.id, entry.document.digest)).collect::<Vec<_>>()
            };
            assert_eq!(digests(&again.manifest), digests(&listing.manifest), "a manifest survives the wire");
            for url in listing.document_urls.iter().chain(&listing.bundle_url) {
                assert!(url.starts_with('/') && !url.starts_with("//"), "{url:?} leads to another origin");
            }
        }
        Err(error) => refused(bytes, &error),
    }
}

pub(crate) fn capabilities(bytes: &[u8]) {
    match g1::capabilities::read(bytes) {
        Ok(read) => {
            let written = g1::capabilities::write(&read);
            let again = g1::capabilities::read(&written).expect("our own capabilities can be read");
            assert_eq!((&again.device, &again.vendor), (&read.device, &read.vendor));
            assert_eq!(
                (&again.model_number, &again.serial_number),
                (&read.model_number, &read.serial_number)
            );
            assert_eq!(again.labels, read.labels, "labels survive the wire");
            // Both generations see the same device.
            let newer = margrave_wire::g2::capabilities::write(&read);
            if let Ok(newer) = margrave_wire::g2::capabilities::read(&newer) {
                assert_eq!(newer.device, read.device);
            }
        }
        Err(error) => refused(bytes, &error),
    }
}

pub(crate) fn status(bytes: &[u8]) {
    match g1::status::read(bytes, 3) {
        Ok(read) => {
            assert!(read.adopted_version >= 1, "the first version is 1");
            let again = g1::status::read(&g1::status::write(&read), 1).expect("our own report can be read");
            assert_eq!(again, read, "a report survives the wire");
        }
        Err(error) => refused(bytes, &error),
    }
}

pub(crate) fn document(bytes: &[u8]) {
    let reader = DeviceId::parse("line-1").expect("a device id");
    match margrave_wire::document::read_any(bytes, &reader) {
        Ok(workload) => {
            let written = g1::document::write(&workload);
            let shown = || String::from_utf8_lossy(&written).into_owned();
            let again = g1::document::read(&written, &reader)
                .unwrap_or_else(|broken| panic!("our own document is refused: {broken:?}\n{}", shown()));
            assert_eq!(
                (again.id, &again.name, &again.application),
                (workload.id, &workload.name, &workload.application)
            );
            assert_eq!(again.kind, workload.kind);
            let parts = |workload: &margrave_core::workload::Workload| {
                let parts = workload.components.iter();
                parts
                    .map(|part| (part.name.clone(), part.repository.clone(), part.revision.clone()))
                    .collect::<Vec<_>>()
            };
            assert_eq!(parts(&again), parts(&workload), "components survive the wire:\n{}", shown());
            let values = |workload: &margrave_core::workload::Workload| {
                let text = |value: &ParameterValue| value.to_string();
                workload
                    .parameters
                    .iter()
                    .map(|p| (p.name.clone(), text(&p.value)))
                    .collect::<BTreeMap<_, _>>()
            };
            assert_eq!(values(&again), values(&workload), "values survive the wire:\n{}", shown());
            assert_eq!(g1::document::write(&again), written, "the same workload has the same bytes");
        }
        Err(violations) => explained(bytes, &violations),
    }
}

/// A certificate as a stranger hands it in, and the answers as a client reads them.
pub(crate) fn onboarding(bytes: &[u8]) {
    if let Ok(client) = onboarding::read_answer(bytes) {
        let again =
            onboarding::read_answer(&onboarding::write_answer(&client)).expect("our own answer can be read");
        assert_eq!(again, client);
    }
    if let Some(error) = onboarding::read_error(bytes) {
        assert!(error.chars().count() <= 200, "a refusal is shown in few words");
    }
    if let Ok(chain) = onboarding::read_root(bytes) {
        assert!(chain.iter().map(Vec::len).sum::<usize>() <= bytes.len(), "nothing grows");
    }
    let text = match onboarding::read_request(bytes) {
        Ok(text) => text,
        Err(error) => return refused(bytes, &error),
    };
    let Ok(chain) = onboarding::read_certificates(&text) else { return };
    assert!(chain.len() <= 10 && chain.iter().map(Vec::len).sum::<usize>() <= text.len(), "nothing grows");
    match ClientCertificate::read(chain) {
        Ok(certificate) => {
            let again = onboarding::read_request(&onboarding::write_request(certificate.der()));
            let chain = onboarding::read_certificates(&again.expect("our own request can be read"));
            let again = ClientCertificate::read(chain.expect("our own certificate can be read"));
            assert_eq!(again.expect("it was accepted before").der(), certificate.der());
        }
        Err(fault) => assert!(fault.to_string().len() <= 500, "a refusal is told in few words"),
    }
}
