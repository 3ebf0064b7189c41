//! What an address says, read for a page: where it cannot be read, people get a page of ours that says so.

use axum::extract::FromRequestParts;
use axum::extract::rejection::{PathRejection, QueryRejection};
use http::request::Parts;

use super::error::PageError;

/// The parts of the path. What is no number where one belongs is the address of nothing.
pub(super) struct Path<T>(pub(super) T);

impl<T, S> FromRequestParts<S> for Path<T>
where
    axum::extract::Path<T>: FromRequestParts<S, Rejection = PathRejection>,
    S: Send + Sync,
{
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageError> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(read)) => Ok(Path(read)),
            Err(_) => Err(PageError::NotFound),
        }
    }
}

/// What is behind the question mark.
pub(super) struct Query<T>(pub(super) T);

impl<T, S> FromRequestParts<S> for Query<T>
where
    axum::extract::Query<T>: FromRequestParts<S, Rejection = QueryRejection>,
    S: Send + Sync,
{
    type Rejection = PageError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, PageError> {
        match axum::extract::Query::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Query(read)) => Ok(Query(read)),
            Err(rejection) => Err(PageError::Address(unread(&rejection.body_text()))),
        }
    }
}

/// The rejection names the field, as `…: against: invalid digit found in string`.
fn unread(rejection: &str) -> String {
    let mut parts = rejection.split(": ").skip(1);
    match (parts.next(), parts.next()) {
        (Some(field), Some(_)) => {
            format!("“{field}” in this address has a value that cannot be read.")
        }
        _ => "What stands behind the question mark of this address cannot be read.".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_part_that_cannot_be_read_is_named() {
        let told = unread("Failed to deserialize query string: against: invalid digit found in string");
        assert_eq!(told, "“against” in this address has a value that cannot be read.");
        assert!(unread("Failed to deserialize query string: duplicate field `a`").starts_with("What stands"));
    }
}
