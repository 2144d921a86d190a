// One peer per run: loads N jobs, then works them off with handlers that make one GET over kept-alive connections, and prints how
// long that took from the first answer to the last. Settings are each queue's durable ones, with the concurrency its own
// documentation advises.
import { Pool } from 'undici'

const [, , peer, count, upstream, server] = process.argv
const jobs = Number(count)
// As many connections as jobs run side by side.
const CONCURRENCY = 100
const pool = new Pool(upstream, { connections: CONCURRENCY, pipelining: 1 })
let done = 0
let first
let finish
const finished = new Promise((resolve) => { finish = resolve })

async function get() {
  const { statusCode, body } = await pool.request({ path: '/', method: 'GET' })
  await body.dump()
  if (statusCode !== 200) throw new Error(`status ${statusCode}`)
  first ??= process.hrtime.bigint()
  if (++done === jobs) finish()
}

// What was loaded is cleaned up and counted, as ours is.
async function vacuum() {
  const { default: pg } = await import('pg')
  const client = new pg.Client({ connectionString: server })
  await client.connect()
  await client.query('vacuum analyze')
  await client.end()
}

function report(cpu) {
  const seconds = Number(process.hrtime.bigint() - first) / 1e9
  const used = process.cpuUsage(cpu)
  console.log(JSON.stringify({ peer, jobs, seconds, cpu_us: (used.user + used.system) / jobs }))
}

const peers = {
  async bullmq() {
    const { Queue, Worker } = await import('bullmq')
    const connection = { host: '127.0.0.1', port: Number(server), maxRetriesPerRequest: null }
    const queue = new Queue('bench', { connection, defaultJobOptions: { removeOnComplete: true } })
    for (let at = 0; at < jobs; at += 1000) {
      const size = Math.min(1000, jobs - at)
      await queue.addBulk(Array.from({ length: size }, (_, n) => ({ name: 'get', data: { n: at + n } })))
    }
    const cpu = process.cpuUsage()
    const worker = new Worker('bench', get, { connection, concurrency: CONCURRENCY })
    await finished
    report(cpu)
    await worker.close()
    await queue.close()
  },

  async 'pg-boss'() {
    const { default: PgBoss } = await import('pg-boss')
    const boss = new PgBoss({ connectionString: server, max: 10 })
    boss.on('error', console.error)
    await boss.start()
    await boss.createQueue('bench')
    for (let at = 0; at < jobs; at += 1000) {
      const size = Math.min(1000, jobs - at)
      await boss.insert(Array.from({ length: size }, (_, n) => ({ name: 'bench', data: { n: at + n } })))
    }
    await vacuum()
    const cpu = process.cpuUsage()
    // Its own workers ask twice a second at most; who fetches and completes by hand, as its documentation shows, does not wait.
    const work = async () => {
      while (done < jobs) {
        const batch = await boss.fetch('bench', { batchSize: 100 })
        await Promise.all(batch.map(get))
        if (batch.length) await boss.complete('bench', batch.map((job) => job.id))
      }
    }
    const workers = Array.from({ length: 4 }, work)
    await finished
    report(cpu)
    await Promise.all(workers)
    await boss.stop({ graceful: false })
  },

  async 'graphile-worker'() {
    const { run, makeWorkerUtils } = await import('graphile-worker')
    const utils = await makeWorkerUtils({ connectionString: server })
    await utils.migrate()
    // In pieces: the time that one statement takes grows with the square of their number.
    for (let at = 0; at < jobs; at += 1000) {
      const size = Math.min(1000, jobs - at)
      await utils.withPgClient((client) =>
        client.query("select graphile_worker.add_job('get', json_build_object('n', $1::int + n)) from generate_series(1, $2::int) n", [at, size]))
    }
    await vacuum()
    const cpu = process.cpuUsage()
    const runner = await run({
      connectionString: server,
      maxPoolSize: 10,
      taskList: { get },
      logger: quiet,
      preset: { worker: { concurrentJobs: CONCURRENCY, localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 } },
    })
    await finished
    report(cpu)
    await runner.stop()
    await utils.release()
  },
}

const { Logger } = await import('graphile-worker')
const quiet = new Logger(() => () => {})
await peers[peer]()
await pool.close()
process.exit(0)
