//! The description of this API. Written by hand and held to the program by tests: every route is in it, and every answer
//! of a running gateway has exactly its members.

use serde_json::Value;

const TEXT: &str = include_str!("openapi.json");

pub(super) fn document() -> Value {
    serde_json::from_str(TEXT).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_is_described_and_nothing_else_is() {
        let document = document();
        let described: Vec<&String> = document["paths"].as_object().unwrap().keys().collect();
        let sources = [
            include_str!("mod.rs"),
            include_str!("../jobs/api.rs"),
            include_str!("../jobs/letters_api.rs"),
            include_str!("../jobs/replay_api.rs"),
            include_str!("../jobs/schedule_api.rs"),
            include_str!("../jobs/transfer.rs"),
        ];
        let routes: Vec<&str> =
            sources.iter().flat_map(|text| text.split(".route(\"").skip(1)).map(|rest| rest.split('"').next().unwrap()).collect();
        assert!(routes.len() > 25, "{routes:?}");
        for route in &routes {
            assert!(described.iter().any(|path| path == route), "{route} is not described");
        }
        for path in described {
            assert!(routes.contains(&path.as_str()), "there is no route {path}");
        }
    }
}
