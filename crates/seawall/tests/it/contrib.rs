//! The shipped Prometheus and Grafana files name only metrics that exist.

use std::collections::BTreeSet;
use std::path::Path;

fn text(name: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)).unwrap()
}

#[test]
fn alerts_and_panels_ask_for_metrics_that_exist() {
    let metrics = super::docs::scraped();
    let exists: BTreeSet<&str> = metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    for file in ["contrib/grafana/seawall.json", "contrib/prometheus/alerts.yml"] {
        let text = text(file);
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').filter(|word| word.starts_with("seawall_"));
        let asked: BTreeSet<&str> =
            words.map(|word| word.trim_end_matches("_bucket").trim_end_matches("_sum").trim_end_matches("_count")).collect();
        assert!(asked.len() > 8, "{file} asks for {asked:?}");
        let missing: Vec<&&str> = asked.iter().filter(|name| !exists.contains(**name)).collect();
        assert!(missing.is_empty(), "{file} asks for {missing:?}");
    }
    serde_json::from_str::<serde_json::Value>(&text("contrib/grafana/seawall.json")).unwrap();
}
