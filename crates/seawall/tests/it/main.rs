//! The product as its users see it: the real binary, and the rules that its sources keep.

#[cfg(test)]
mod flaky;
#[cfg(test)]
mod tidy;
