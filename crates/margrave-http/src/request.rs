//! A request under construction. Mistakes in it are kept and told when it is sent.

use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Serialize;
use tokio::io::AsyncRead;

use crate::content::Content;

/// Method, path, headers and content; and, if they differ from the client's, its limits.
pub struct Request {
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) content: Content,
    pub(crate) timeout: Option<Duration>,
    pub(crate) body_idle: Option<Duration>,
    pub(crate) body_max: Option<u64>,
    pub(crate) terse: bool,
    pub(crate) fault: Option<String>,
}

impl Request {
    /// `path` begins with a slash and may have a query; the origin's prefix is put before it.
    pub fn new(method: Method, path: impl Into<String>) -> Request {
        Request {
            method,
            path: path.into(),
            headers: HeaderMap::new(),
            content: Content::empty(),
            timeout: None,
            body_idle: None,
            body_max: None,
            terse: false,
            fault: None,
        }
    }

    pub fn get(path: impl Into<String>) -> Request {
        Request::new(Method::GET, path)
    }

    pub fn head(path: impl Into<String>) -> Request {
        Request::new(Method::HEAD, path)
    }

    pub fn put(path: impl Into<String>) -> Request {
        Request::new(Method::PUT, path)
    }

    pub fn post(path: impl Into<String>) -> Request {
        Request::new(Method::POST, path)
    }

    pub fn patch(path: impl Into<String>) -> Request {
        Request::new(Method::PATCH, path)
    }

    pub fn delete(path: impl Into<String>) -> Request {
        Request::new(Method::DELETE, path)
    }

    pub fn header(mut self, name: HeaderName, value: impl AsRef<str>) -> Request {
        match HeaderValue::from_str(value.as_ref()) {
            Ok(value) => {
                self.headers.insert(name, value);
            }
            // The value may be a token, so it is not repeated.
            Err(_) => {
                self.fault = Some(format!("the value for header {name} has characters that cannot be sent"))
            }
        }
        self
    }

    /// A header whose value is a secret: hyper and `Debug` do not show it.
    pub fn secret_header(mut self, name: HeaderName, value: impl AsRef<str>) -> Request {
        self = self.header(name.clone(), value);
        if let Some(value) = self.headers.get_mut(&name) {
            value.set_sensitive(true);
        }
        self
    }

    pub fn bytes(mut self, content_type: &'static str, bytes: impl Into<Bytes>) -> Request {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        self.content = Content::Bytes(bytes.into());
        self
    }

    pub fn json<T: Serialize + ?Sized>(mut self, value: &T) -> Request {
        match serde_json::to_vec(value) {
            Ok(bytes) => self.bytes("application/json", bytes),
            Err(error) => {
                self.fault = Some(format!("its content cannot be written as JSON: {error}"));
                self
            }
        }
    }

    /// Exactly `length` bytes from `reader`. Such a request is never sent twice.
    pub fn reader(
        mut self,
        content_type: &'static str,
        length: u64,
        reader: impl AsyncRead + Send + 'static,
    ) -> Request {
        self.headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        self.content = Content::Reader { reader: Box::pin(reader), left: length };
        self
    }

    /// Without telling who we are: for requests that are sent all day long.
    pub fn terse(mut self) -> Request {
        self.terse = true;
        self
    }

    pub fn method(&self) -> &Method {
        &self.method
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    /// The content, unless it comes from a reader; for whoever signs requests.
    pub fn content(&self) -> Option<&[u8]> {
        match &self.content {
            Content::Bytes(bytes) => Some(bytes),
            Content::Reader { .. } => None,
        }
    }

    /// The same request once more, unless its content comes from a reader.
    pub fn again(&self) -> Option<Request> {
        Some(Request {
            method: self.method.clone(),
            path: self.path.clone(),
            headers: self.headers.clone(),
            content: self.content.again()?,
            timeout: self.timeout,
            body_idle: self.body_idle,
            body_max: self.body_max,
            terse: self.terse,
            fault: self.fault.clone(),
        })
    }

    /// How long the whole exchange may take; for a streamed answer, until its head is there.
    pub fn timeout(mut self, timeout: Duration) -> Request {
        self.timeout = Some(timeout);
        self
    }

    /// How long a streamed answer may be silent.
    pub fn body_idle(mut self, idle: Duration) -> Request {
        self.body_idle = Some(idle);
        self
    }

    /// How large the answer's body may be.
    pub fn body_max(mut self, bytes: u64) -> Request {
        self.body_max = Some(bytes);
        self
    }
}
