//! What a result is: ordered rules over status, headers and body, and the waits that servers ask for.
