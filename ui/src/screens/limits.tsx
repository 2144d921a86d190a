// Limits and pools: how full each is, whom it holds back, and what it refused.

import type { JSX } from "preact";
import { count, share } from "../format";
import { Badge, Empty, Failure, Loading, Meter, Panel } from "../parts/basics";
import { useResource } from "../resource";
import type { Limit, Pool } from "../types";

export function Limits(): JSX.Element {
  const { data, error, again } = useResource<{ limits: Limit[]; pools: Pool[] }>("/v1/limits", { every: 2 });
  if (error && !data) return <Failure error={error} again={again} />;
  if (!data) return <Loading rows={6} />;
  return (
    <>
      <Panel title="Pools" note="bulkheads: calls at once, and in line">
        {data.pools.length === 0 ? (
          <Empty icon="limits" title="No pool" code={'[pools.export]\nconcurrent = 5\nqueue = 20\nqueue_timeout = "500ms"\n\n[upstreams.reports]\npool = "export"'}>
            A pool keeps one slow upstream from taking every connection.
          </Empty>
        ) : (
          <div class="cards">{data.pools.map((pool) => <OnePool key={pool.name} pool={pool} />)}</div>
        )}
      </Panel>
      <Panel title="Rate limits" note="layers, in the order in which they are asked">
        {data.limits.length === 0 ? (
          <Empty icon="limits" title="No limit" code={'[[limits]]\nname = "everyone"\nkey = "caller"\nrate = "100/s"\nburst = 20\nmode = "shadow"'}>
            Start in shadow mode: it counts what it would have refused, and refuses nothing.
          </Empty>
        ) : (
          <div class="cards">{data.limits.map((limit) => <OneLimit key={`${limit.of}/${limit.name}/${limit.key}/${limit.rate}`} limit={limit} />)}</div>
        )}
      </Panel>
    </>
  );
}

function OnePool({ pool }: { pool: Pool }): JSX.Element {
  return (
    <article class="gauge">
      <header>
        <h3>{pool.name}</h3>
        {pool.limit < pool.concurrent && <Badge word="adapting" as="info" title="the limit follows latency" />}
        <b class={pool.saturation >= 0.9 ? "bad-text" : pool.saturation >= 0.7 ? "warn-text" : ""}>{share(pool.saturation, 0)}</b>
      </header>
      <Meter value={pool.saturation} label={`${pool.name} saturation`} />
      <p class="soft">
        {pool.running} of {pool.limit}{pool.limit < pool.concurrent ? ` (${pool.concurrent})` : ""} running · {pool.waiting} of {pool.queue} in line · {count(pool.rejected)} refused
      </p>
    </article>
  );
}

function OneLimit({ limit }: { limit: Limit }): JSX.Element {
  return (
    <article class="gauge">
      <header>
        <h3>{limit.of && <span class="soft">{limit.of}/</span>}{limit.name}</h3>
        <Badge word={limit.mode} title={limit.mode === "shadow" ? "counts what it would have refused, and refuses nothing" : undefined} />
        <b class="number">{limit.rate}</b>
      </header>
      <p class="soft">
        {limit.of ? "" : "all upstreams · "}per {limit.key} · burst {count(limit.burst)} · {limit.algorithm} · {count(limit.keys)} seen
      </p>
      <p>
        <b class={limit.rejected ? "warn-text" : ""}>{count(limit.rejected)}</b> refused
        {limit.shadow_rejected > 0 && <> · <b>{count(limit.shadow_rejected)}</b> would have been</>}
      </p>
      {limit.top.length > 0 && (
        <ul class="bars" aria-label={`Busiest of ${limit.name}`}>
          {limit.top.slice(0, 5).map((one) => (
            <li key={one.key}>
              <span class="cut" title={one.key}>{one.key}</span>
              <Meter value={one.used_share} label={one.key} />
              <b>{share(one.used_share, 0)}</b>
            </li>
          ))}
        </ul>
      )}
    </article>
  );
}
