//! Ports without a data path: memory and rings only (`NR_REG_NULL`).

use unetmap_abi::NmreqRegister;

use crate::end::{End, Way};
use crate::pipe::wished_shape;
use crate::refusal::Refusal;
use crate::region::{House, HouseId};

/// Such a port; it has one end, and one session.
pub(crate) struct NullPort {
    pub(crate) house: HouseId,
    pub(crate) end: End,
}

impl NullPort {
    /// Makes the rings that were asked for.
    pub(crate) fn make(house: &mut House, asked: &NmreqRegister) -> Result<NullPort, Refusal> {
        Ok(NullPort { house: house.id, end: End::make(house, wished_shape(asked)?, Way::None)? })
    }
}
