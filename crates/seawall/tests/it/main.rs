//! The product as its users see it: the real binary, and the rules that its sources keep.

#[cfg(test)]
mod admin_eyes;
#[cfg(test)]
mod admin_hands;
#[cfg(test)]
mod admin_matrix;
#[cfg(test)]
mod admission;
#[cfg(test)]
mod async_identity;
#[cfg(test)]
mod backup;
#[cfg(test)]
mod blame;
#[cfg(test)]
mod bodies;
#[cfg(test)]
mod caller;
#[cfg(test)]
mod check;
// The store's own suite starts its server in the same way.
#[cfg(test)]
#[path = "../../../seawall-store/tests/conformance/cluster.rs"]
mod cluster;
#[cfg(test)]
mod commands;
#[cfg(test)]
mod config;
#[cfg(test)]
mod config_files;
#[cfg(test)]
mod connections;
#[cfg(test)]
mod contrib;
#[cfg(test)]
mod databases;
#[cfg(test)]
mod dead_letters;
#[cfg(test)]
mod degrade;
#[cfg(test)]
mod demo;
#[cfg(test)]
mod descriptors;
#[cfg(test)]
mod dir;
#[cfg(test)]
#[path = "../../../seawall-store/tests/conformance/disks.rs"]
mod disks;
#[cfg(test)]
mod docs;
mod doors;
#[cfg(test)]
mod drill;
#[cfg(test)]
mod error_shapes;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod exchange;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod failpoints;
#[cfg(test)]
mod fetch;
#[cfg(test)]
mod fetch_again;
#[cfg(test)]
mod fetch_edited;
#[cfg(test)]
mod fetch_options;
#[cfg(test)]
mod flaky;
#[cfg(test)]
mod forwarding;
#[cfg(test)]
mod gateway;
#[cfg(test)]
mod h2_callers;
#[cfg(test)]
mod hardship;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod idempotency;
#[cfg(test)]
mod identity;
#[cfg(test)]
mod jobs;
#[cfg(test)]
mod jobs_postgres;
#[cfg(test)]
mod kills;
#[cfg(test)]
mod links;
#[cfg(test)]
mod notifications;
#[cfg(test)]
mod operate;
#[cfg(test)]
mod own_ports;
#[cfg(test)]
mod pages;
#[cfg(test)]
mod pauses;
#[cfg(test)]
mod records;
#[cfg(test)]
mod references;
#[cfg(test)]
mod relaying;
#[cfg(test)]
mod repeated;
#[cfg(test)]
mod replays;
#[cfg(test)]
mod rules;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod secrets;
#[cfg(test)]
mod servers;
#[cfg(test)]
mod shared;
#[cfg(test)]
mod shared_keys;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod splitting;
#[cfg(test)]
mod tidy;
#[cfg(test)]
mod timeouts;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod tokens;
#[cfg(test)]
mod unrepeatable;
#[cfg(test)]
mod uploads;
#[cfg(test)]
mod upstream;
#[cfg(test)]
mod usage;
#[cfg(test)]
mod waiting;
#[cfg(test)]
#[expect(dead_code, reason = "other tests use more of it")]
#[path = "../../../seawall-store/tests/conformance/wire.rs"]
mod wire;
