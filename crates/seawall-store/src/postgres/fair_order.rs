//! Fair order of claims like in the embedded backend, but in a table: within a lane, tenants take turns.

use std::collections::{BTreeMap, HashMap};

/// The order of groups, as in Rust: by bytes, whatever the database's collation.
pub(super) const ORDER: &str = "upstream COLLATE \"C\", tenant COLLATE \"C\"";
/// The first turn given to a group, to be followed by the group's number in brackets. An array lookup instead of a join, since there may be
/// as many groups as jobs.
pub(super) const FIRST: &str = "(SELECT firsts FROM given)";

/// A part of a statement that takes the next turns of each tenant in `groups (upstream, tenant, n)`, for [`FIRST`]. All statements lock in
/// one order, to avoid deadlocks.
pub(super) fn given(groups: &str) -> String {
    format!(
        "taken AS (INSERT INTO turns AS t (upstream, tenant, last, step) \
         SELECT g.upstream, g.tenant, coalesce(l.present, 0) + g.n - 1, g.n FROM {groups} LEFT JOIN lanes l USING (upstream) ORDER BY 1, 2 \
         ON CONFLICT (upstream, tenant) DO UPDATE SET last = greatest(t.last + excluded.step, excluded.last), step = excluded.step \
         RETURNING upstream, tenant, last - step + 1 AS first), \
         given AS MATERIALIZED (SELECT array_agg(first ORDER BY {ORDER}) AS firsts FROM taken)"
    )
}

/// The number of turns that each tenant needs, and the assignment of jobs to them.
#[derive(Debug, Default)]
pub(super) struct Groups<'a>(BTreeMap<(&'a str, &'a str), i64>);

impl<'a> Groups<'a> {
    /// Returns the position of one more job among its tenant's.
    pub(super) fn place(&mut self, upstream: &'a str, tenant: &'a str) -> i64 {
        let taken = self.0.entry((upstream, tenant)).or_default();
        *taken += 1;
        *taken - 1
    }

    /// Returns the number of each job's group, from one, once all have positions; `None` for a job without one.
    pub(super) fn numbers<'j>(&self, jobs: impl Iterator<Item = (&'j str, &'j str)>) -> Vec<Option<i64>>
    where
        'a: 'j,
    {
        let numbers: HashMap<(&str, &str), i64> = self.0.keys().copied().zip(1..).collect();
        jobs.map(|name| numbers.get(&name).copied()).collect()
    }

    /// Returns the groups as columns: upstreams, tenants, counts.
    pub(super) fn columns(&self) -> (Vec<&'a str>, Vec<&'a str>, Vec<i64>) {
        let (names, counts): (Vec<(&str, &str)>, Vec<i64>) = self.0.iter().map(|(name, count)| (*name, *count)).unzip();
        let (upstreams, tenants) = names.into_iter().unzip();
        (upstreams, tenants, counts)
    }
}
