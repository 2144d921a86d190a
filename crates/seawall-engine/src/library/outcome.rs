//! Classification of whole results, values and errors.

use super::classification::Meaning;
use super::classify::Classify;

/// Classifies a result, values included. [`Errors`] and [`Responses`] are the two implementations.
pub trait Judge<T, E> {
    /// Returns the meaning of this result.
    ///
    /// ```
    /// # use seawall_engine::Usual;
    /// # use seawall_engine::library::{Errors, Judge};
    /// let judge = Errors::<Usual>::default();
    /// let result: Result<u8, _> = Err(http::StatusCode::BAD_GATEWAY);
    /// let meaning = judge.judge(&result);
    /// ```
    fn judge<'a>(&self, result: &'a Result<T, E>) -> Meaning<'a>;
}

/// Every value is a success; the classifier decides errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Errors<C>(pub(super) C);

/// Values are HTTP responses, which the policy's rules classify; the classifier decides errors.
#[derive(Clone, Copy, Debug, Default)]
pub struct Responses<C>(pub(super) C);

impl<T, E, C: Classify<E>> Judge<T, E> for Errors<C> {
    #[inline]
    fn judge<'a>(&self, result: &'a Result<T, E>) -> Meaning<'a> {
        match result {
            Ok(_) => Meaning::SUCCESS,
            Err(error) => self.0.classify(error),
        }
    }
}

impl<B, E, C: Classify<E>> Judge<http::Response<B>, E> for Responses<C> {
    #[inline]
    fn judge<'a>(&self, result: &'a Result<http::Response<B>, E>) -> Meaning<'a> {
        match result {
            Ok(response) => response.into(),
            Err(error) => self.0.classify(error),
        }
    }
}
