//! What the compiler says to those who use the library wrongly.

#[test]
fn mistakes_are_explained() {
    let cases = trybuild::TestCases::new();
    cases.compile_fail("tests/compile/*.rs");
}
