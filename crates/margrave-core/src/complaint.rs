//! What container engines and registries complain of in words alone, where the words tell what to do and the code does not.
//!
//! They are matched as Docker, Podman and Go's libraries print them. What is not recognised is told as it is.

/// Whether somebody was reached, and not believed to be who they are: nobody knows the authority behind the certificate.
pub fn distrusts(words: &str) -> bool {
    ["certificate signed by unknown authority", "certificate is not trusted"]
        .iter()
        .any(|said| words.contains(said))
}
