//! Where packages come from: registries, watched repositories, and the texts beside a description.

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A registry that the server knows how to open. Secrets go in and never come out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Registry {
    /// `host` or `host:port`.
    pub host: String,
    /// Without TLS; on the server's own machine only.
    pub plain: bool,
    /// It has an authority of its own.
    pub private_authority: bool,
    /// `anonymous`, `password` or `token`.
    pub credentials: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    pub changed_at: String,
    pub changed_by: String,
}

/// How a registry is opened, in place of what was known before.
#[derive(Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutRegistry {
    /// Without TLS; refused unless the host is the server's own machine.
    #[serde(default)]
    pub plain: bool,
    /// Certificates of its own authority, PEM; beside those that the server's machine trusts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authority: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// With `user`: for the registry, or for the token service that it names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<String>,
    /// Instead of `user` and `password`: a bearer token that the registry itself takes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

/// A secret never reaches a log.
impl fmt::Debug for PutRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutRegistry")
            .field("plain", &self.plain)
            .field("authority", &self.authority.is_some())
            .field("user", &self.user)
            .field("password", &self.password.is_some())
            .field("token", &self.token.is_some())
            .finish()
    }
}

/// What a registry said when it was asked.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistryCheck {
    pub host: String,
    /// It is a registry and takes the credentials.
    pub ok: bool,
    pub message: String,
}

/// A repository whose new tags become packages of the catalog by themselves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Watch {
    /// `oci://host/repository`.
    pub repository: String,
    /// Which tags: `*` stands for any characters, `?` for one.
    #[serde(rename = "match")]
    pub pattern: String,
    pub every_seconds: u64,
    pub added_at: String,
    pub added_by: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked_at: Option<String>,
    pub next_at: String,
    /// What did not work at the last look.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
    pub tags: Vec<WatchedTag>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WatchedTag {
    pub tag: String,
    pub digest: String,
    /// `added`; `broken`, not tried again until it changes; `incomplete`, something that it needs is not in its registry
    /// yet; or `alias` of another tag.
    pub state: String,
    /// `id version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub package: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub looked_at: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PutWatch {
    /// Which tags: `*` stands for any characters, `?` for one; all of them when left out.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub pattern: Option<String>,
    /// 60 to 604800; 900 when left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every_seconds: Option<u64>,
}

/// Something about where a package came from. Nothing that runs is touched by it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageWarning {
    /// `moved`, `gone`, `componentGone` or `imageGone`.
    pub kind: String,
    pub text: String,
}

/// The texts that a package brings beside its description.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageTexts {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<PackageText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release_notes: Option<PackageText>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub license: Option<PackageText>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PackageText {
    /// Its path inside the package.
    pub path: String,
    pub text: String,
    /// The file goes on; this is its beginning.
    #[serde(default)]
    pub truncated: bool,
}
