//! What happens next: backoff, retry budget, deadline.
