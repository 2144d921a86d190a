//! Whether the upstream is in a state to be asked: the circuit breaker.
