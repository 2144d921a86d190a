//! Everything is in the policy; what the errors mean takes four lines.
use super::{Api, No};
use seawall_engine::{Class, Meaning, Policy};
use std::sync::Arc;

pub fn caller(api: Arc<Api>) -> impl Fn(u64) -> std::pin::Pin<Box<dyn Future<Output = bool> + Send>> {
    let policy = Policy::from_toml("[defaults.breaker]\nopen = \"1s\"\nopen_max = \"1s\"\n").unwrap();
    move |number| {
        let (api, policy) = (Arc::clone(&api), policy.clone());
        Box::pin(async move { policy.classify(meaning).call(|_| api.get(number)).await.is_ok() })
    }
}

fn meaning(no: &No) -> Meaning<'static> {
    match no {
        No::Unavailable => Class::Transient.into(),
        No::Later(after) => Meaning::from(Class::Transient).after(*after),
        No::NotFound => Class::Permanent.into(),
    }
}
