//! The page for people: one file, with its style and its script in it. The script asks this server for [`super::STATE`] and nothing else.

use std::hash::{BuildHasher, RandomState};

use keyway_http::Answer;

/// The page. Its style and its script have the attribute `nonce="NONCE"`.
const PAGE: &str = include_str!("page.html");

/// An answer with the page. A browser runs its own script and style only, and connects to this server only: the policy names them by a
/// number that each answer has anew.
pub(super) fn answer() -> Answer {
    let nonce = format!("{:016x}{:016x}", random(), random());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'"
    );
    Answer {
        status: 200,
        content_type: "text/html; charset=utf-8",
        body: PAGE.replace("NONCE", &nonce).into_bytes(),
        policy: Some(policy),
    }
}

fn random() -> u64 {
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_nothing_from_elsewhere() {
        for forbidden in [
            "src=",
            "url(",
            "@import",
            "http://",
            "https://",
            "<link rel=\"stylesheet",
            "innerHTML",
            "eval(",
            "style=\"",
        ] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        assert_eq!(PAGE.matches("nonce=\"NONCE\"").count(), 2);
        assert_eq!(PAGE.matches("NONCE").count(), 2);
    }

    #[test]
    fn only_the_pages_own_script_runs_and_no_number_comes_twice() {
        let (one, other) = (answer(), answer());
        assert_ne!(one.policy, other.policy);
        let policy = one.policy.unwrap();
        let nonce = policy
            .split("script-src 'nonce-")
            .nth(1)
            .and_then(|rest| rest.split('\'').next())
            .unwrap();
        assert_eq!(nonce.len(), 32);
        let body = String::from_utf8(one.body).unwrap();
        assert!(body.contains(&format!("<script nonce=\"{nonce}\">")));
        assert!(body.contains(&format!("<style nonce=\"{nonce}\">")));
        assert!(
            policy.starts_with("default-src 'none'; ") && policy.contains("; connect-src 'self'; ") && !policy.contains("unsafe")
        );
    }
}
