//! What container engines and registries complain of in words alone, where the words tell what to do and the code does not.
//!
//! They are matched as Docker, Podman and Go's libraries print them. What is not recognised is told as it is.

/// Whether somebody was reached, and not believed to be who they are: nobody knows the authority behind the certificate.
pub fn distrusts(words: &str) -> bool {
    ["certificate signed by unknown authority", "certificate is not trusted"]
        .iter()
        .any(|said| words.contains(said))
}

/// Whether something else has a port of the device.
pub fn finds_port_taken(words: &str) -> bool {
    ["address already in use", "port is already allocated"].iter().any(|said| words.contains(said))
}

/// The first port in such words: `listen tcp4 0.0.0.0:8766: bind: …` has 8766.
pub fn port_in(words: &str) -> Option<u16> {
    // The groups of an address of the newer kind are no ports: `[::1]:80`.
    let mut outside = String::new();
    let mut is_inside = false;
    for character in words.chars() {
        match character {
            '[' => is_inside = true,
            ']' => is_inside = false,
            _ if is_inside => {}
            other => outside.push(other),
        }
    }
    outside.split(':').skip(1).find_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let is_whole = !after.starts_with(|c: char| c.is_alphanumeric() || c == '.');
        number.parse().ok().filter(|port| is_whole && *port > 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_that_is_taken_is_read_from_what_engines_say() {
        for (words, port) in [
            (
                "driver failed programming external connectivity on endpoint mg-1-web-1 (4f2): Error starting userland proxy: \
                 listen tcp4 0.0.0.0:8766: bind: address already in use",
                Some(8766),
            ),
            ("Bind for 0.0.0.0:8080 failed: port is already allocated", Some(8080)),
            ("Bind for :::8080 failed: port is already allocated", Some(8080)),
            (
                "failed to set up container networking: failed to bind host port for 0.0.0.0:8766:172.18.0.2:80/tcp: \
                 address already in use",
                Some(8766),
            ),
            ("failed to bind host port 127.0.0.1:53/udp: address already in use", Some(53)),
            ("rootlessport listen tcp [::1]:8443: bind: address already in use", Some(8443)),
            ("cannot listen on the TCP port: listen tcp4 :9000: bind: address already in use", Some(9000)),
            ("cannot listen on the TCP port: address already in use", None),
            ("port is already allocated", None),
        ] {
            assert!(finds_port_taken(words), "{words}");
            assert_eq!(port_in(words), port, "{words}");
        }
        assert!(!finds_port_taken("no such device"));
    }
}
