//! The product as its users see it: the real binary, and the rules that its sources keep.

#[cfg(test)]
mod check;
#[cfg(test)]
mod config;
#[cfg(test)]
mod dir;
#[cfg(test)]
mod explain;
#[cfg(test)]
mod flaky;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tidy;
#[cfg(test)]
mod usage;
