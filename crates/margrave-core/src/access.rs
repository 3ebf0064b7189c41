//! Who may do what: the roles of operators, and what an operator may be called.

use std::fmt;
use std::str::FromStr;

/// What the holder of a token may do. Each role may do all that the ones before it may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Reads everything but secrets and tokens.
    Viewer,
    /// Also changes what should run and what is known of devices.
    Operator,
    /// Also looks after tokens, the authority, registries, settings and backups.
    Admin,
}

impl Role {
    pub const ALL: [Role; 3] = [Role::Viewer, Role::Operator, Role::Admin];

    pub const fn as_str(self) -> &'static str {
        match self {
            Role::Viewer => "viewer",
            Role::Operator => "operator",
            Role::Admin => "admin",
        }
    }

    pub fn parse(text: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.as_str() == text)
    }

    /// Whether what needs `needed` may be done with this role.
    pub fn allows(self, needed: Role) -> bool {
        self >= needed
    }

    /// What its holder is told who wants to do something that needs more.
    pub fn too_little(self, needed: Role) -> String {
        format!(
            "this needs the role {needed}, and your token has the role {self}; ask an admin for a token with that role"
        )
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What an operator is called: it stands in logs and on pages, so it looks like a name and like nothing else.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OperatorName(String);

/// Bytes; a name and a place, and it still fits on a line.
const NAME_LENGTH_MAX: usize = 64;
/// Who else does something in the audit log, where operators stand by their names alone: nobody may be taken for these.
const OTHERS: [&str; 2] = ["server", "unknown"];
const OTHERS_BEGIN: [&str; 2] = ["device ", "operator "];

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "an operator's name is 1 to 64 bytes of letters, digits and '.', '-', '_', '@' or '+', with single blanks inside, and not one \
     that the audit log has for others: server, unknown, device … or operator …"
)]
pub struct InvalidName;

impl OperatorName {
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        let allowed = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | '_' | '@' | '+' | ' ');
        let fits = (1..=NAME_LENGTH_MAX).contains(&text.len())
            && text.chars().all(allowed)
            && text.chars().any(char::is_alphanumeric)
            && text.trim() == text
            && !text.contains("  ");
        let lower = text.to_lowercase();
        let is_others =
            OTHERS.contains(&lower.as_str()) || OTHERS_BEGIN.iter().any(|kind| lower.starts_with(kind));
        let fits = fits && !is_others;
        fits.then(|| OperatorName(text.to_owned())).ok_or(InvalidName)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for OperatorName {
    type Err = InvalidName;

    fn from_str(text: &str) -> Result<Self, InvalidName> {
        OperatorName::parse(text)
    }
}

impl fmt::Display for OperatorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_may_do_what_the_ones_below_it_may() {
        use Role::{Admin, Operator, Viewer};
        for (role, may) in
            [(Viewer, [true, false, false]), (Operator, [true, true, false]), (Admin, [true, true, true])]
        {
            assert_eq!(Role::ALL.map(|needed| role.allows(needed)), may, "{role}");
            assert_eq!(Role::parse(role.as_str()), Some(role));
        }
        for wrong in ["", "Admin", "root", "viewer ", "operator,admin"] {
            assert_eq!(Role::parse(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn an_operator_is_called_something_that_looks_like_a_name() {
        for good in ["ann", "Ann Müller", "ci@nord", "deploy-bot_2", "a", "李雷", "server-2", &"x".repeat(64)]
        {
            assert_eq!(OperatorName::parse(good).unwrap().as_str(), good);
        }
        let long = "x".repeat(65);
        for bad in [
            "",
            " ",
            "-",
            "...",
            " ann",
            "ann ",
            "a  b",
            "a\nb",
            "a\0",
            "a\u{202e}b",
            "<b>",
            "a/b",
            "a\"b",
            &long,
            "a\tb",
            "a\u{200b}b",
            "server",
            "Unknown",
            "device press-1",
            "Operator ann",
        ] {
            assert_eq!(OperatorName::parse(bad), Err(InvalidName), "{bad:?}");
        }
    }
}
