// SPDX-License-Identifier: BSD-2-Clause
//! Addresses of rules.

use std::net::{IpAddr, Ipv4Addr};

use super::{Parser, Result};
use crate::rule::{Nets, Side, Test};
use crate::table::Prefix;

impl Parser<'_, '_> {
    /// Parses `any`, a table, a set of last bytes or a list of networks.
    pub(super) fn address(&mut self, side: Side, word: &str) -> Result<Test> {
        let test = match word {
            "any" | "0.0.0.0/0" | "::/0" => {
                self.show("any");
                return Ok(Test::Always(true));
            }
            "me" | "me6" => {
                let table = self.context.own(word == "me6").ok_or_else(|| {
                    self.words.error(format!(
                        "`{word}`: neither port is an interface of this host; give the addresses, or table(NAME)"
                    ))
                })?;
                Test::Own(side, table)
            }
            _ if word.starts_with("table(") => self.table(side, word)?,
            _ if word.contains('{') => self.last_bytes(side, word)?,
            _ => {
                let mut nets = Nets::default();
                for item in word.split(',') {
                    if !add_network(&mut nets, item) {
                        return Err(self.words.error(format!(
                            "`{item}` is no address; give ADDRESS, ADDRESS/BITS or ADDRESS:MASK, separated by commas"
                        )));
                    }
                }
                if nets.v4.contains(&(0, 0)) || nets.v6.contains(&(0, 0)) {
                    self.show("any");
                    return Ok(Test::Always(true));
                }
                debug_assert!(!super::is_empty(&nets));
                Test::Nets(side, Box::new(nets))
            }
        };
        self.show(word);
        Ok(test)
    }

    /// Parses `table(NAME)` or `table(NAME,VALUE)`.
    pub(super) fn table(&mut self, side: Side, word: &str) -> Result<Test> {
        let inner = word.strip_prefix("table(").and_then(|rest| rest.strip_suffix(')'));
        let inner =
            inner.ok_or_else(|| self.words.error(format!("`{word}`: give table(NAME) or table(NAME,VALUE)")))?;
        let (name, value) = inner.split_once(',').map_or((inner, None), |(name, value)| (name, Some(value)));
        let value = match value.map(|value| value.strip_prefix("value=").unwrap_or(value).parse::<u32>()) {
            None => None,
            Some(Ok(value)) => Some(value),
            Some(Err(_)) => return Err(self.words.error(format!("`{word}`: the value of an entry is a number"))),
        };
        let table = self.context.table(name).map_err(|e| self.words.error(e))?;
        Ok(Test::Table(side, table, value))
    }

    /// Parses `ADDRESS/24{1,5-9}`: addresses that differ in the last byte. Without a length, /24.
    fn last_bytes(&mut self, side: Side, word: &str) -> Result<Test> {
        let refuse =
            || format!("`{word}`: give an IPv4 network of /24 to /31 and last bytes, as in 10.0.0.0/24{{1,5-9}}");
        let parsed = || -> Option<Test> {
            let (base, list) = word.strip_suffix('}')?.split_once('{')?;
            let (base, bits) = base.split_once('/').map_or(Some((base, 24)), |(a, b)| Some((a, b.parse().ok()?)))?;
            let base: Ipv4Addr = base.parse().ok()?;
            let first = u32::from(base) & u32::MAX << 32u32.checked_sub(bits).filter(|left| (1..=8).contains(left))?;
            let last = first | ((1 << (32 - bits)) - 1);
            let mut set = [0u64; 4];
            for item in list.split(',') {
                let (from, to): (u32, u32) = match item.split_once('-') {
                    Some((from, to)) => (from.parse().ok()?, to.parse().ok()?),
                    None => (item.parse().ok()?, item.parse().ok()?),
                };
                if from > to || from < first & 255 || to > last & 255 {
                    return None;
                }
                (from..=to).for_each(|byte| set[byte as usize / 64] |= 1 << (byte % 64));
            }
            Some(Test::LastByte(side, first >> 8, Box::new(set)))
        };
        parsed().ok_or_else(|| self.words.error(refuse()))
    }
}

/// Adds `ADDRESS`, `ADDRESS/BITS` or `ADDRESS:MASK`; returns false if the text is none of them.
fn add_network(nets: &mut Nets, text: &str) -> bool {
    if let Some(prefix) = Prefix::parse(text) {
        match prefix.address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(prefix.bits)).unwrap_or(0);
                nets.v4.push((address.into(), mask));
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(prefix.bits)).unwrap_or(0);
                nets.v6.push((address.into(), mask));
            }
        }
        return true;
    }
    let Some((address, mask)) = text.split_once(':') else { return false };
    let (Ok(address), Ok(mask)) = (address.parse::<Ipv4Addr>(), mask.parse::<Ipv4Addr>()) else { return false };
    nets.v4.push((u32::from(address) & u32::from(mask), mask.into()));
    true
}
