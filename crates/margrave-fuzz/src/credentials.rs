//! Certificate requests, certificates and trust bundles.

use margrave_core::id::TrustDomain;
use margrave_core::moment::Moment;
use margrave_identity::bundle::{Bundle, REFRESH_MIN};
use margrave_identity::certificate::{Statements, chain_from_pem, pem_of};
use margrave_identity::csr::Csr;
use margrave_wire::identity::Discovery;
use rustls::pki_types::CertificateDer;

pub(crate) fn csr(bytes: &[u8]) {
    let read = match std::str::from_utf8(bytes) {
        Ok(text) if text.contains("-----") => Csr::from_pem(text),
        _ => Csr::from_der(bytes),
    };
    match read {
        Ok(csr) => {
            let again = Csr::from_pem(&csr.to_pem()).expect("our own PEM can be read");
            assert_eq!(again.der(), csr.der());
            assert_eq!(again.key(), csr.key());
        }
        Err(error) => assert!(error.to_string().len() <= 500, "a refusal is told in few words"),
    }
}

pub(crate) fn certificate(bytes: &[u8]) {
    let chain = match std::str::from_utf8(bytes) {
        Ok(text) if text.contains("-----") => match chain_from_pem(text) {
            Ok(chain) => chain,
            Err(error) => return assert!(error.to_string().len() <= 500),
        },
        _ => vec![CertificateDer::from(bytes.to_vec())],
    };
    assert!(!chain.is_empty() && chain.len() <= 6, "a chain is bounded");
    let text: String = chain.iter().map(pem_of).collect();
    assert_eq!(chain_from_pem(&text).expect("our own PEM can be read"), chain);
    for certificate in &chain {
        let Ok(statements) = Statements::read(certificate) else { continue };
        let said: usize = statements.uris.iter().map(String::len).sum();
        assert!(said <= certificate.len(), "names come from the certificate and nowhere else");
        assert!(statements.serial.to_string().len() <= 2 * certificate.len());
        // An end that no calendar has must not become a beginning.
        let far = Moment(u64::MAX);
        assert!(statements.is_expired(far) || statements.not_after.0 / 1000 == far.0 / 1000);
        assert!(!statements.is_not_yet_valid(far));
    }
}

pub(crate) fn trust_bundle(bytes: &[u8]) {
    if let Ok(discovery) = Discovery::parse(bytes) {
        assert!(discovery.trust_bundle_uri.starts_with("https://"), "{}", discovery.trust_bundle_uri);
    }
    let domain = TrustDomain::parse("plant.example").expect("a trust domain");
    let bundle = match Bundle::parse(domain.clone(), bytes) {
        Ok(bundle) => bundle,
        Err(error) => return assert!(error.to_string().len() <= 500),
    };
    assert!(!bundle.anchors().is_empty(), "a bundle without an anchor trusts nobody, or everybody");
    assert!(bundle.refresh_after() >= REFRESH_MIN);
    // However late the next refresh is, it has a time.
    assert!(Moment(1).after(bundle.refresh_after()) > Moment(1));
    let text = serde_json::to_vec(&bundle.to_wire()).expect("a key set is plain data");
    let again = Bundle::parse(domain, &text).expect("our own bundle can be read");
    let certificates = |bundle: &Bundle| {
        bundle.anchors().iter().map(|anchor| anchor.certificate().to_vec()).collect::<Vec<_>>()
    };
    assert_eq!(certificates(&again), certificates(&bundle), "anchors survive the wire");
    assert_eq!((again.sequence(), again.refresh_after()), (bundle.sequence(), bundle.refresh_after()));
}
