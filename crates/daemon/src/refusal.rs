//! A request refused: netmap's errno, and a sentence for a person.

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: i32,
    pub(crate) why: String,
}

/// Refuses with `errno`, because `why`.
pub(crate) fn refuse<T>(errno: i32, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { errno, why: why.into() })
}
