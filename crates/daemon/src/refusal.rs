//! A request refused: netmap's errno, and a sentence for a person.

/// Why a request is refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) errno: i32,
    pub(crate) why: String,
    /// The option (`NETMAP_REQ_OPT_*`) that is wrong, if it is one.
    pub(crate) option: Option<u32>,
}

impl Refusal {
    /// The same; it is this option that is wrong.
    pub(crate) fn of_option(self, kind: u32) -> Refusal {
        Refusal { option: Some(kind), ..self }
    }
}

/// Refuses with `errno`, because `why`.
pub(crate) fn refuse<T>(errno: i32, why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal { errno, why: why.into(), option: None })
}
