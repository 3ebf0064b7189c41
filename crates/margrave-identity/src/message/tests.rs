use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, RsaKeySize};
use serde_json::Value;

use super::*;

fn decoded(text: &str) -> Vec<u8> {
    STANDARD.decode(text).unwrap()
}

/// RFC 9421, appendix B: its keys, its bases, its signatures.
#[test]
fn rfc_9421_appendix_b_signatures_verify() {
    let ed25519 = "MCowBQYDK2VwAyEAJrQLj5P/89iXES9+vFgrIy29clF9CC/oPPsw3c5D0bs=";
    let p256 = "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEqIVYZVLCrPZHGHjP17CTW0/+D9Lfw0EkjqF7xB4FivAxzic30tMM4GF+\
                hR6Dxh71Z50VGGdldkkDXZCnTNnoXQ==";
    let rsa = "MIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8AMIIBCgKCAQEAr4tmm3r20Wd/PbqvP1s2+QEtvpuRaV8Yq40gjUR8y2Rjxa6dpG2G\
               XHbPfvMs8ct+Lh1GH45x28Rw3Ry53mm+oAXjyQ86OnDkZ5N8lYbggD4O3w6M6pAvLkhk95AndTrifbIFPNU8PPMO7OyrFAHq\
               gDsznjPFmTOtCEcN2Z1FpWgchwuYLPL+Wokqltd11nqqzi+bJ9cvSKADYdUAAN5WUtzdpiy6LbTgSxP7ociU4Tn0g5I6aDZJ\
               7A8Lzo0KSyZYoA485mqcO0GVAdVw9lq4aOT9v6d+nb4bnNkQVklLQ3fVAvJm+xdDOp9LCNCN48V2pnDOkFV6+U9nV5oyc6XI\
               2wIDAQAB";
    let b26 = "\"date\": Tue, 20 Apr 2021 02:07:55 GMT\n\"@method\": POST\n\"@path\": /foo\n\"@authority\": example.com\n\
               \"content-type\": application/json\n\"content-length\": 18\n\"@signature-params\": (\"date\" \"@method\" \
               \"@path\" \"@authority\" \"content-type\" \"content-length\");created=1618884473;keyid=\"test-key-ed25519\"";
    let b24 = "\"@status\": 200\n\"content-type\": application/json\n\"content-digest\": sha-512=:mEWXIS7MaLRuGgxOBdODa\
               3xqM1XdEvxoYhvlCFJ41QJgJc4GTsPp29l5oGX69wWdXymyU0rjJuahq4l5aGgfLQ==:\n\"content-length\": 23\n\
               \"@signature-params\": (\"@status\" \"content-type\" \"content-digest\" \"content-length\");\
               created=1618884473;keyid=\"test-key-ecc-p256\"";
    let b21 = "\"@signature-params\": ();created=1618884473;keyid=\"test-key-rsa-pss\";nonce=\"b3k2pp5k7z-50gnwp.yemd\"";
    let by_ed25519 =
        "wqcAqbmYJ2ji2glfAMaRy4gruYYnx2nEFN2HN6jrnDnQCK1u02Gb04v9EDgwUPiu4A0w6vuQv5lIp5WPpBKRCw==";
    let by_p256 = "wNmSUAhwb5LxtOtOpNa6W5xj067m5hFrj0XQ4fvpaCLx0NKocgPquLgyahnzDnDAUy5eCdlYUEkLIj+32oiasw==";
    let by_rsa = "d2pmTvmbncD3xQm8E9ZV2828BjQWGgiwAaw5bAkgibUopemLJcWDy/lkbbHAve4cRAtx31Iq786U7it++wgGxbtRxf8Udx7zFZsck\
                  zXaJMkA7ChG52eSkFxykJeNqsrWH5S+oxNFlD4dzVuwe8DhTSja8xxbR/Z2cOGdCbzR72rgFWhzx2VjBqJzsPLMIQKhO4DGezXehh\
                  WwE56YCE+O6c0mKZsfxVrogUvA4HELjVKWmAvtl6UnCh8jYzuVG5WSb/QEVPnP5TmcAnLH1g+s++v6d4s8m0gCw1fV5/SITLq9mhh\
                  o8K3+7EPYTU8IU1bLhdxO5Nyt8C8ssinQ98Xw9Q==";
    for (spki, base, signature, algorithm) in [
        (ed25519, b26, by_ed25519, Ed25519),
        (p256, b24, by_p256, EcdsaP256Sha256),
        (rsa, b21, by_rsa, RsaPssSha512),
    ] {
        let key = VerificationKey::from_spki(&decoded(spki)).unwrap();
        for alg in [None, Some(algorithm.as_str())] {
            let verified = key.verify(alg, base.as_bytes(), &decoded(signature)).unwrap();
            assert_eq!(verified.algorithm, algorithm);
        }
        let other = base.replace("created=1618884473", "created=1618884474");
        let refused = key.verify(None, other.as_bytes(), &decoded(signature));
        assert_eq!(refused, Err(SignatureFault::Mismatch));
    }
    // Signing is deterministic here, so that ours must be the RFC's signature.
    let pem = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ+DYvh6SEqVTm50DFtMDoQikTmiCqirVv9mWG9qfSnF\n\
               -----END PRIVATE KEY-----\n";
    let signer = Signer::from_pem(pem).unwrap();
    assert_eq!(STANDARD.encode(signer.sign(b26.as_bytes()).unwrap()), by_ed25519);
}

/// Made once by another implementation (Python's `cryptography`), with the salts that programs use.
#[test]
fn mi_g1_046_mi_g1_047_amb_05_every_algorithm_of_another_implementation_verifies() {
    let vectors: Value = serde_json::from_str(include_str!("../../vectors/message_signatures.json")).unwrap();
    let base = vectors["base"].as_str().unwrap().as_bytes();
    let signatures = vectors["signatures"].as_array().unwrap();
    assert_eq!(signatures.len(), 14);
    for vector in signatures {
        let name = vector["key"].as_str().unwrap();
        let der = decoded(vectors["certificates"][name].as_str().unwrap());
        let certificate = ClientCertificate::read(vec![der]).unwrap();
        assert_eq!(certificate.key().keyid(), vectors["keyids"][name].as_str().unwrap());
        let alg = vector["alg"].as_str().unwrap();
        let signature = decoded(vector["signature"].as_str().unwrap());
        // A fresh key and one that has got used to something else: the order of tries decides nothing.
        for _ in 0..2 {
            for stated in [None, Some(alg)] {
                let verified = certificate
                    .key()
                    .verify(stated, base, &signature)
                    .unwrap_or_else(|e| panic!("{vector}: {e}"));
                assert_eq!(verified.algorithm.as_str(), alg, "{vector}");
            }
        }
        for other in Algorithm::ALL.iter().filter(|other| other.as_str() != alg) {
            assert!(
                certificate.key().verify(Some(other.as_str()), base, &signature).is_err(),
                "{vector} as {other}"
            );
        }
        for changed in [&base[1..], b""] {
            assert_eq!(certificate.key().verify(None, changed, &signature), Err(SignatureFault::Mismatch));
        }
        let mut torn = signature.clone();
        torn[3] ^= 1;
        assert_eq!(certificate.key().verify(None, base, &torn), Err(SignatureFault::Mismatch));
        torn.pop();
        assert_eq!(certificate.key().verify(None, base, &torn), Err(SignatureFault::Mismatch));
        assert_eq!(certificate.key().verify(None, base, b""), Err(SignatureFault::Mismatch));
    }
}

fn pems() -> Vec<String> {
    let mut pems: Vec<String> =
        [&rcgen::PKCS_ECDSA_P256_SHA256, &rcgen::PKCS_ECDSA_P384_SHA384, &rcgen::PKCS_ED25519]
            .map(|kind| KeyPair::generate_for(kind).unwrap().serialize_pem())
            .into();
    pems.push(KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap().serialize_pem());
    pems
}

fn public(pem: &str) -> VerificationKey {
    use rcgen::PublicKeyData as _;
    VerificationKey::from_spki(&KeyPair::from_pem(pem).unwrap().subject_public_key_info()).unwrap()
}

#[test]
fn mi_g1_043_what_we_sign_we_verify() {
    for pem in pems() {
        let key = public(&pem);
        let signer = Signer::from_pem(&pem).unwrap();
        assert_eq!(signer.keyid(), key.keyid());
        let mut ways = vec![signer.algorithm()];
        if ways == [RsaV15Sha256] {
            ways.extend([RsaPssSha256, RsaPssSha512]);
        }
        for algorithm in ways {
            let signer = Signer::from_pem(&pem).unwrap().with_algorithm(algorithm).unwrap();
            let signature = signer.sign(b"base").unwrap();
            let verified = key.verify(Some(algorithm.as_str()), b"base", &signature).unwrap();
            assert_eq!(key.verify(None, b"base", &signature), Ok(verified));
            let again = key.verify(None, b"base", &signer.sign(b"base").unwrap()).unwrap();
            assert_eq!(again.mark == verified.mark, algorithm.is_deterministic(), "{algorithm}");
        }
    }
    let signer = Signer::from_pem(&pems()[0]).unwrap();
    assert!(matches!(signer.with_algorithm(Ed25519), Err(SignerError::OtherAlgorithm(Ed25519))));
    assert!(matches!(Signer::from_pem("nothing"), Err(SignerError::NotPkcs8)));
}

/// Every length that fits, with keys whose size leaves spare bits and keys whose size does not.
#[test]
fn amb_05_a_pss_salt_may_have_any_length() {
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::signature::{RSA_PSS_SHA256, RSA_PSS_SHA512, RsaKeyPair};
    for (bits, step) in [(RsaKeySize::_2048, 1), (RsaKeySize::_3072, 37)] {
        let pair = KeyPair::generate_rsa_for(&rcgen::PKCS_RSA_SHA256, bits).unwrap();
        let key = public(&pair.serialize_pem());
        let private = RsaKeyPair::from_pkcs8(&pair.serialize_der()).unwrap();
        let length = private.public_modulus_len();
        for (algorithm, hash_length) in [(RsaPssSha256, 32), (RsaPssSha512, 64)] {
            for salt in (0..=length - hash_length - 2).step_by(step) {
                let salted = RsaPssSaltLength::Custom(salt as u16);
                let mut signature = vec![0; length];
                let random = SystemRandom::new();
                // The library wants its encodings to live for ever; a test may let them.
                let encoding = match algorithm {
                    RsaPssSha256 => RSA_PSS_SHA256.with_pss_salt_length(salted),
                    _ => RSA_PSS_SHA512.with_pss_salt_length(salted),
                };
                private.sign(Box::leak(Box::new(encoding)), &random, b"base", &mut signature).unwrap();
                for alg in [None, Some(algorithm.as_str())] {
                    let verified = key.verify(alg, b"base", &signature).unwrap();
                    assert_eq!(verified.algorithm, algorithm, "salt of {salt}");
                }
                assert_eq!(key.verify(None, b"other", &signature), Err(SignatureFault::Mismatch));
                assert_eq!(
                    key.verify(Some("rsa-v1_5-sha256"), b"base", &signature),
                    Err(SignatureFault::Mismatch)
                );
                signature[length / 2] ^= 1;
                assert_eq!(key.verify(None, b"base", &signature), Err(SignatureFault::Mismatch));
            }
        }
        // What no key of this size can have signed.
        for impossible in [vec![0xff; length], vec![0; length], vec![0; length + 1], vec![1], vec![]] {
            assert_eq!(key.verify(None, b"base", &impossible), Err(SignatureFault::Mismatch));
        }
    }
}

#[test]
fn an_algorithm_that_is_named_must_be_known_and_go_with_the_key() {
    let key = public(&pems()[0]);
    let refused = key.verify(Some("hmac-sha256"), b"x", b"y").unwrap_err();
    assert_eq!(refused, SignatureFault::UnknownAlgorithm("hmac-sha256".into()));
    assert!(refused.to_string().contains("rsa-pss-sha256"), "{refused}");
    let refused = key.verify(Some("ed25519"), b"x", b"y").unwrap_err();
    assert_eq!(refused, SignatureFault::OtherAlgorithm { alg: Ed25519, key: "ECDSA P-256" });
}

/// Anybody can negate s; the memory of used signatures must not take the result for a new one.
#[test]
fn mi_g1_065_a_negated_ecdsa_signature_is_the_same_one() {
    use x509_parser::num_bigint::BigUint;
    let pem = &pems()[0];
    let (key, signature) = (public(pem), Signer::from_pem(pem).unwrap().sign(b"base").unwrap());
    let order = BigUint::parse_bytes(b"ffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551", 16)
        .unwrap();
    let negated = (order - BigUint::from_bytes_be(&signature[32..])).to_bytes_be();
    let mut other = signature[..32].to_vec();
    other.resize(64 - negated.len(), 0);
    other.extend(negated);
    assert_ne!(other, signature);
    let marks = [&signature, &other].map(|signature| key.verify(None, b"base", signature).unwrap().mark);
    assert_eq!(marks[0], marks[1]);
}

#[test]
fn keys_that_nobody_should_use_are_refused() {
    use rcgen::PublicKeyData as _;
    let p521 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap().subject_public_key_info();
    assert!(matches!(VerificationKey::from_spki(&p521), Err(KeyFault::Kind(_))));
    // A 1024-bit key, made with: openssl genrsa 1024 | openssl rsa -pubout -outform DER
    let modulus = [&[0x00, 0xc1][..], &[0x5b; 127]].concat();
    let rsa = [&[0x02, 0x81, 0x81][..], &modulus, &[0x02, 0x03, 0x01, 0x00, 0x01]].concat();
    let rsa = [&[0x30, 0x81, rsa.len() as u8][..], &rsa].concat();
    let bits = [&[0x03, 0x81, rsa.len() as u8 + 1, 0x00][..], &rsa].concat();
    let algorithm = decoded("MA0GCSqGSIb3DQEBAQUA");
    let spki = [&[0x30, 0x81, (algorithm.len() + bits.len()) as u8][..], &algorithm, &bits].concat();
    assert!(matches!(VerificationKey::from_spki(&spki), Err(KeyFault::RsaSize(1024))));
    for bad in [&[][..], &[0x30, 0x00], &p521[..20]] {
        assert!(VerificationKey::from_spki(bad).is_err());
    }
}

mod certificates {
    use std::time::Duration;

    use margrave_core::moment::Moment;
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyUsagePurpose};

    use super::*;
    use crate::forge::NOW;
    use crate::key::PrivateKey;

    fn made(change: impl FnOnce(&mut CertificateParams)) -> Vec<u8> {
        let mut params = CertificateParams::default();
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn mi_g1_008_mi_g1_029_a_certificate_is_sound_or_refused() {
        let read = |der: Vec<u8>| ClientCertificate::read(vec![der]);
        assert!(read(made(|_| {})).is_ok());
        // What `openssl req -x509` makes: its own authority.
        assert!(read(made(|params| params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained))).is_ok());
        let usage = |usage| made(move |params| params.key_usages = vec![usage]);
        assert!(read(usage(KeyUsagePurpose::DigitalSignature)).is_ok());
        assert!(read(usage(KeyUsagePurpose::ContentCommitment)).is_ok());
        assert_eq!(read(usage(KeyUsagePurpose::KeyEncipherment)).unwrap_err(), CertificateFault::KeyUsage);
        let backwards = made(|params| {
            params.not_before = rcgen::date_time_ymd(2030, 1, 1);
            params.not_after = rcgen::date_time_ymd(2029, 1, 1);
        });
        assert_eq!(read(backwards).unwrap_err(), CertificateFault::Validity);
        let good = made(|_| {});
        let longer = [&good[..], &[0]].concat();
        assert_eq!(read(longer).unwrap_err(), CertificateFault::Unreadable);
        for length in 0..good.len() {
            assert!(read(good[..length].to_vec()).is_err(), "{length}");
        }
        let p521 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P521_SHA512).unwrap();
        let p521 = CertificateParams::default().self_signed(&p521).unwrap();
        assert!(matches!(read(p521.der().to_vec()), Err(CertificateFault::Key(KeyFault::Kind(_)))));
        assert_eq!(ClientCertificate::read(vec![]).unwrap_err(), CertificateFault::Empty);
        assert_eq!(ClientCertificate::read(vec![good.clone(); 7]).unwrap_err(), CertificateFault::TooMany);
        let large = vec![0; certificate::CERTIFICATE_BYTES_MAX + 1];
        assert!(matches!(read(large), Err(CertificateFault::TooLarge(_))));
    }

    #[test]
    fn our_own_certificate_is_taken_by_our_own_server() {
        let key = PrivateKey::generate().unwrap();
        let certificate = ClientCertificate::self_signed(&key, "line-1", NOW).unwrap();
        assert_eq!(certificate.subject(), "CN=line-1");
        assert!(certificate.is_valid(NOW));
        assert!(!certificate.is_valid(NOW.after(Duration::from_secs(21 * 365 * 24 * 3600))));
        assert!(!certificate.is_valid(Moment(0)));
        assert_eq!(certificate.fingerprint(), Digest::of(key.public().spki()));
        let again = ClientCertificate::from_pem(&certificate.pem()).unwrap();
        assert_eq!(again.der(), certificate.der());
        let signer = Signer::from_pem(&key.to_pem()).unwrap();
        assert!(again.key().verify(None, b"base", &signer.sign(b"base").unwrap()).is_ok());
        assert!(ClientCertificate::from_pem("nothing").is_err());
    }

    #[test]
    fn mi_g1_011_a_root_vouches_for_what_it_signed_and_only_then() {
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.not_after = rcgen::date_time_ymd(2040, 1, 1);
        let root = ca.self_signed(&ca_key).unwrap();
        let issuer = Issuer::from_params(&ca, &ca_key);
        let mut leaf = CertificateParams::default();
        leaf.not_after = rcgen::date_time_ymd(2030, 1, 1);
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        let vouched = ClientCertificate::read(vec![leaf.der().to_vec()]).unwrap();
        let roots = Roots::from_pem(&root.pem()).unwrap();
        assert!(roots.vouch_for(&vouched, NOW).is_ok());
        assert!(roots.vouch_for(&vouched, Moment(4_000_000_000_000)).is_err(), "expired");
        let stranger = ClientCertificate::read(vec![made(|_| {})]).unwrap();
        assert!(roots.vouch_for(&stranger, NOW).is_err());
        assert!(Roots::from_pem("nothing").is_err());
    }
}
