//! What must hold for every sequence of bytes that a stranger can send.
//!
//! A [`Target`] takes bytes, gives them to a parser of ours, and asserts what is promised about the result:
//! what was read and written again reads the same, what is refused says why in few words, nothing leaves its
//! directory. Panicking is the only way to fail. The same functions are driven twice: by `tests/fuzz` on every
//! test run, over the seeds and their damaged copies, and by `driver.rs`, guided by coverage
//! (`scripts/fuzz`). It owns no parser and no fix; those are in the crates that it attacks.
//!
//! Start with [`TARGETS`].

mod archives;
mod bodies;
mod credentials;
mod documents;
mod names;
mod ranges;
mod requests;
pub mod seeds;
mod signed;
mod signed_requests;

/// One way in.
pub struct Target {
    /// As it is typed: `scripts/fuzz NAME`.
    pub name: &'static str,
    /// Panics when a promise is broken.
    pub run: fn(&[u8]),
    /// Inputs of our own making to start from.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Names of the specification's examples that are seeds too begin with one of these.
    pub examples: &'static [&'static str],
    /// Longer inputs are not tried: they cost time and find nothing that shorter ones do not.
    pub input_bytes_max: usize,
}

const KIB: usize = 1024;

/// All ways in, in the order of their names.
pub const TARGETS: &[Target] = &[
    Target {
        name: "bundle",
        run: archives::bundle,
        seeds: seeds::bundles,
        examples: &[],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "capabilities",
        run: bodies::capabilities,
        seeds: seeds::capabilities,
        examples: &["DeviceCapabilities"],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "certificate",
        run: credentials::certificate,
        seeds: seeds::certificates,
        examples: &[],
        input_bytes_max: 4 * KIB,
    },
    Target {
        name: "compose-archive",
        run: archives::compose,
        seeds: seeds::compose_archives,
        examples: &[],
        input_bytes_max: 16 * KIB,
    },
    Target {
        name: "compose-file",
        run: documents::compose,
        seeds: seeds::compose_files,
        examples: &[],
        input_bytes_max: 4 * KIB,
    },
    Target {
        name: "csr",
        run: credentials::csr,
        seeds: seeds::requests_for_certificates,
        examples: &[],
        input_bytes_max: 4 * KIB,
    },
    Target {
        name: "description",
        run: documents::description,
        seeds: seeds::descriptions,
        examples: &["ApplicationDescription"],
        input_bytes_max: 16 * KIB,
    },
    Target {
        name: "document",
        run: documents::document,
        seeds: seeds::documents,
        examples: &["ApplicationDeployment", "DesiredState-", "gateway-"],
        input_bytes_max: 16 * KIB,
    },
    Target {
        name: "manifest",
        run: bodies::manifest,
        seeds: seeds::manifests,
        examples: &["DesiredStateManifest"],
        input_bytes_max: 8 * KIB,
    },
    Target { name: "names", run: names::names, seeds: seeds::names, examples: &[], input_bytes_max: KIB },
    Target {
        name: "package-manifest",
        run: archives::package_manifest,
        seeds: seeds::package_manifests,
        examples: &[],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "problem",
        run: bodies::problem,
        seeds: seeds::problems,
        examples: &["ProblemDetail"],
        input_bytes_max: 4 * KIB,
    },
    Target { name: "ranges", run: ranges::ranges, seeds: seeds::ranges, examples: &[], input_bytes_max: KIB },
    Target {
        name: "requests",
        run: requests::requests,
        seeds: seeds::requests,
        examples: &[],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "signature",
        run: signed::signature,
        seeds: seeds::signatures,
        examples: &[],
        input_bytes_max: 4 * KIB,
    },
    Target {
        name: "signed-capabilities",
        run: signed::capabilities,
        seeds: seeds::signed_capabilities,
        examples: &["DeviceCapabilities"],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "signed-document",
        run: signed::document,
        seeds: seeds::signed_documents,
        examples: &["ApplicationDeployment", "DesiredState-", "gateway-"],
        input_bytes_max: 16 * KIB,
    },
    Target {
        name: "signed-manifest",
        run: signed::manifest,
        seeds: seeds::signed_manifests,
        examples: &["DesiredStateManifest"],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "signed-onboarding",
        run: signed::onboarding,
        seeds: seeds::onboardings,
        examples: &[],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "signed-requests",
        run: signed_requests::requests,
        seeds: seeds::signed_requests,
        examples: &[],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "signed-status",
        run: signed::status,
        seeds: seeds::signed_statuses,
        examples: &["DeploymentStatusManifest"],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "status",
        run: bodies::status,
        seeds: seeds::statuses,
        examples: &["DeploymentStatusManifest"],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "trust-bundle",
        run: credentials::trust_bundle,
        seeds: seeds::trust_bundles,
        examples: &[],
        input_bytes_max: 8 * KIB,
    },
    Target {
        name: "yaml",
        run: documents::yaml,
        seeds: seeds::yaml,
        examples: &["ApplicationDescription", "ApplicationDeployment", "DesiredState-", "gateway-"],
        input_bytes_max: 8 * KIB,
    },
];

/// The target of this name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// How many words a refusal may cost: a list of two hundred broken rules, and each place in the body named once.
fn refusal_bytes_max(input: &[u8]) -> usize {
    256 * KIB + 4 * input.len()
}
