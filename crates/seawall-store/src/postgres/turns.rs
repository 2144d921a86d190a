//! Whose turn it is, as the embedded backend counts it, but in a table: within a lane, tenants take turns.

use std::collections::BTreeMap;

/// A part of a statement: takes the next turns of each tenant that `groups (upstream, tenant, n)` names, and calls the
/// first of each `taken (upstream, tenant, first)`. In one order for all, so that nobody waits in a circle.
pub(super) fn taken(groups: &str) -> String {
    format!(
        "taken AS (INSERT INTO turns AS t (upstream, tenant, last, step) \
         SELECT g.upstream, g.tenant, coalesce(l.present, 0) + g.n - 1, g.n FROM {groups} LEFT JOIN lanes l USING (upstream) ORDER BY 1, 2 \
         ON CONFLICT (upstream, tenant) DO UPDATE SET last = greatest(t.last + excluded.step, excluded.last), step = excluded.step \
         RETURNING upstream, tenant, last - step + 1 AS first)"
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

    /// As columns: upstreams, tenants, how many.
    pub(super) fn columns(&self) -> (Vec<&'a str>, Vec<&'a str>, Vec<i64>) {
        let (names, counts): (Vec<(&str, &str)>, Vec<i64>) = self.0.iter().map(|(name, count)| (*name, *count)).unzip();
        let (upstreams, tenants) = names.into_iter().unzip();
        (upstreams, tenants, counts)
    }
}
