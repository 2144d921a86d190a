//! The program: parses the command line and hands over to one door.

fn main() {}
