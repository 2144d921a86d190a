//! Whose turn it is, as the embedded backend counts it, but in a table: within a lane, tenants take turns.

use std::collections::{BTreeMap, HashMap};

/// How groups are ordered, here as there: by bytes, whatever the database's language.
pub(super) const ORDER: &str = "upstream COLLATE \"C\", tenant COLLATE \"C\"";
/// The first turn that a group was given, to be followed by the group's number in brackets. Looked up and not joined: there may
/// be as many groups as jobs.
pub(super) const FIRST: &str = "(SELECT firsts FROM given)";

/// A part of a statement: takes the next turns of each tenant that `groups (upstream, tenant, n)` names, for [`FIRST`]. In one
/// order for all, so that nobody waits in a circle.
pub(super) fn given(groups: &str) -> String {
    format!(
        "taken AS (INSERT INTO turns AS t (upstream, tenant, last, step) \
         SELECT g.upstream, g.tenant, coalesce(l.present, 0) + g.n - 1, g.n FROM {groups} LEFT JOIN lanes l USING (upstream) ORDER BY 1, 2 \
         ON CONFLICT (upstream, tenant) DO UPDATE SET last = greatest(t.last + excluded.step, excluded.last), step = excluded.step \
         RETURNING upstream, tenant, last - step + 1 AS first), \
         given AS MATERIALIZED (SELECT array_agg(first ORDER BY {ORDER}) AS firsts FROM taken)"
    )
}

/// How many turns each tenant needs, and which of them a job gets.
#[derive(Debug, Default)]
pub(super) struct Groups<'a>(BTreeMap<(&'a str, &'a str), i64>);

impl<'a> Groups<'a> {
    /// The place of one more job among its tenant's.
    pub(super) fn place(&mut self, upstream: &'a str, tenant: &'a str) -> i64 {
        let taken = self.0.entry((upstream, tenant)).or_default();
        *taken += 1;
        *taken - 1
    }

    /// The number of each job's group, from one, once all have their places; none where a job has no place.
    pub(super) fn numbers<'j>(&self, jobs: impl Iterator<Item = (&'j str, &'j str)>) -> Vec<Option<i64>>
    where
        'a: 'j,
    {
        let numbers: HashMap<(&str, &str), i64> = self.0.keys().copied().zip(1..).collect();
        jobs.map(|name| numbers.get(&name).copied()).collect()
    }

    /// As columns: upstreams, tenants, how many.
    pub(super) fn columns(&self) -> (Vec<&'a str>, Vec<&'a str>, Vec<i64>) {
        let (names, counts): (Vec<(&str, &str)>, Vec<i64>) = self.0.iter().map(|(name, count)| (*name, *count)).unzip();
        let (upstreams, tenants) = names.into_iter().unzip();
        (upstreams, tenants, counts)
    }
}
