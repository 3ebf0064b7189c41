//! The operator interface, asked often: a program for each question would take most of the time.

use margrave_http::{Client, Limits, Origin, Request, Trust, header};
use serde_json::Value;

use crate::stage::Stage;

/// One conversation; each device has its own.
pub(crate) struct Operator {
    client: Client,
    token: String,
    runtime: tokio::runtime::Runtime,
}

impl Operator {
    pub(crate) fn of(stage: &Stage) -> Operator {
        let context = std::fs::read(stage.path("server/context.json")).expect("the server wrote its context");
        let context: Value = serde_json::from_slice(&context).expect("the context is JSON");
        let origin = Origin::parse(&format!("http://127.0.0.1:{}", stage.local)).expect("an address");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        Operator {
            client: Client::new(Trust::PlainLoopback, origin, Limits::default())
                .expect("nothing to go wrong"),
            token: context["token"].as_str().expect("a token").to_owned(),
            runtime: runtime.expect("a runtime"),
        }
    }

    pub(crate) fn get(&self, path: &str) -> Value {
        self.send(Request::get(at(path)))
    }

    pub(crate) fn put(&self, path: &str, body: &Value) -> Value {
        self.send(Request::put(at(path)).json(body))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        self.send(Request::post(at(path)).json(body))
    }

    pub(crate) fn delete(&self, path: &str) {
        self.send(Request::delete(at(path)));
    }

    fn send(&self, request: Request) -> Value {
        let what = format!("{} {}", request.method(), request.path());
        let token = format!("Bearer {}", self.token);
        let request = request.secret_header(header::AUTHORIZATION, token);
        let answer = self.runtime.block_on(self.client.send(request));
        let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(answer.status.is_success(), "{what}: {answer:?}");
        answer.json().unwrap_or(Value::Null)
    }
}

fn at(path: &str) -> String {
    format!("{}{path}", margrave_wire::operator::PREFIX)
}
