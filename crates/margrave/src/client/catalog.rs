//! Registries, watched repositories and the texts of packages.

use margrave_http::Request;
use margrave_wire::operator::{PackageTexts, PutRegistry, PutWatch, Registry, RegistryCheck, Watch};

use super::{ADD_TIME_MAX, Client, at, segment};
use crate::exit::Result;

impl Client {
    pub(crate) async fn package_texts(&self, id: &str, version: &str) -> Result<PackageTexts> {
        self.get(&format!("/packages/{}/{}/texts", segment(id), segment(version))).await
    }

    pub(crate) async fn registries(&self) -> Result<Vec<Registry>> {
        self.all("/registries?limit=1000").await
    }

    pub(crate) async fn put_registry(&self, host: &str, want: &PutRegistry) -> Result<Registry> {
        self.ask(Request::put(at(&format!("/registries/{}", segment(host)))).json(want)).await
    }

    pub(crate) async fn remove_registry(&self, host: &str) -> Result<()> {
        self.done(Request::delete(at(&format!("/registries/{}", segment(host))))).await
    }

    pub(crate) async fn check_registry(&self, host: &str) -> Result<RegistryCheck> {
        let request = Request::post(at(&format!("/registries/{}/check", segment(host))));
        self.ask(request.timeout(ADD_TIME_MAX)).await
    }

    pub(crate) async fn watches(&self) -> Result<Vec<Watch>> {
        self.all("/watches?limit=1000").await
    }

    pub(crate) async fn put_watch(&self, repository: &str, want: &PutWatch) -> Result<Watch> {
        self.ask(Request::put(at(&format!("/watches/{}", segment(repository)))).json(want)).await
    }

    pub(crate) async fn look_at_watch(&self, repository: &str) -> Result<Watch> {
        let request = Request::post(at(&format!("/watches/{}/look", segment(repository))));
        self.ask(request.timeout(ADD_TIME_MAX)).await
    }

    pub(crate) async fn remove_watch(&self, repository: &str) -> Result<()> {
        self.done(Request::delete(at(&format!("/watches/{}", segment(repository))))).await
    }
}
