//! One list of paths for routing and for the API description. The description is built on request only, because it takes megabytes.

use crate::ServerState;
use axum::Router;
use axum::handler::Handler;
use axum::routing::{MethodFilter, on};
use std::sync::Arc;
use utoipa::openapi::{HttpMethod, OpenApi};

#[derive(Debug)]
pub(crate) struct Paths {
    pub router: Router<Arc<ServerState>>,
    descriptions: Vec<fn() -> OpenApi>,
}

impl Paths {
    pub(crate) fn new(description: fn() -> OpenApi) -> Self {
        Self { router: Router::new(), descriptions: vec![description] }
    }

    /// Adds the route of a handler, with method and path from its description.
    pub(crate) fn on<P: utoipa::Path, H: Handler<T, Arc<ServerState>>, T: 'static>(mut self, handler: H) -> Self {
        let methods = P::methods().iter().map(filter).reduce(MethodFilter::or);
        if let Some(methods) = methods {
            self.router = self.router.route(&P::path(), on(methods, handler));
        }
        self
    }

    pub(crate) fn merge(mut self, more: Self) -> Self {
        self.router = self.router.merge(more.router);
        self.descriptions.extend(more.descriptions);
        self
    }

    pub(crate) fn describe(&self, into: &mut OpenApi) {
        self.descriptions.iter().for_each(|description| into.merge(description()));
    }
}

const fn filter(method: &HttpMethod) -> MethodFilter {
    match method {
        HttpMethod::Get => MethodFilter::GET,
        HttpMethod::Post => MethodFilter::POST,
        HttpMethod::Put => MethodFilter::PUT,
        HttpMethod::Delete => MethodFilter::DELETE,
        HttpMethod::Options => MethodFilter::OPTIONS,
        HttpMethod::Head => MethodFilter::HEAD,
        HttpMethod::Patch => MethodFilter::PATCH,
        HttpMethod::Trace => MethodFilter::TRACE,
    }
}

/// Lists the paths of a module by their handlers.
macro_rules! paths {
    ($($handler:ident),+ $(,)?) => {
        #[derive(utoipa::OpenApi)]
        #[openapi(paths($($handler),+))]
        struct Described;

        pub(crate) fn paths() -> crate::admin::paths::Paths {
            pastey::paste! {
                crate::admin::paths::Paths::new(<Described as utoipa::OpenApi>::openapi)
                    $(.on::<[<__path_ $handler>], _, _>($handler))+
            }
        }
    };
}
pub(crate) use paths;
