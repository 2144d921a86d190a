# Benches and other things that take long: `just --list`. Each program says in its first lines what it needs; `bench/RESULTS.md` has the figures.

# Everything that must hold
test:
    ./test

# CPU, memory and latency of the gateway beside nginx and HAProxy (`--quick` is a short run)
gateway *ARGS:
    bench/gateway/run {{ARGS}}

# Minutes of faults: memory, descriptors, unexplained responses
soak *ARGS:
    bench/gateway/soak {{ARGS}}

# Real clients in front of a faulty upstream (`--quick`: one seed and fewer faults)
healing *ARGS:
    bench/healing/run {{ARGS}}

# Durable jobs beside BullMQ, pg-boss and graphile-worker
jobs *ARGS:
    bench/jobs/run {{ARGS}}

# The durable store beside its disk (`just store 1000000`)
store *ARGS:
    bench/store/run {{ARGS}}

# A list of URLs beside curl, wget2, aria2, Scrapy and aiohttp
fetch *ARGS:
    bench/fetch/run {{ARGS}}

# Instructions of single operations beside libraries
core *ARGS:
    bench/core/run {{ARGS}}

# A library call beside its peers
library *ARGS:
    bench/library/run {{ARGS}}

# A check of three limits, beside governor and in Redis
limits *ARGS:
    bench/limits/run {{ARGS}}

# A fleet on one Redis
shared *ARGS:
    bench/shared/run {{ARGS}}

# A surge, a dip, and what `check` says of outages, live
drills *ARGS:
    bench/drills/run {{ARGS}}

# Callers' latency while fifty listeners watch
eyes *ARGS:
    bench/eyes/run {{ARGS}}

# Kill the program at random instants under load
kills COUNT="1000":
    SEAWALL_KILLS={{COUNT}} cargo test -p seawall --test it --locked kills

# Cut the power of a recorded process
power COUNT="50000":
    SEAWALL_POWER_CUTS={{COUNT}} cargo test -p seawall-store --test power --locked

# Run a fuzz target: `just fuzz request_heads`
fuzz TARGET *ARGS:
    cargo +nightly fuzz run {{TARGET}} {{ARGS}}

# Build what is shipped
dist:
    cargo build --profile dist --locked -p seawall
