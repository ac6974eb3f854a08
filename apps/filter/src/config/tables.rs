// SPDX-License-Identifier: BSD-2-Clause
//! The commands of tables.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;
use std::sync::Arc;

use unetmap_suggest::did_you_mean;

use super::{Config, Result};
use crate::parse;
use crate::parse::words::{Words, of_beginning};
use crate::rule::Test;
use crate::table::{Prefix, Table};

/// ipfw's `tables_max`.
const MAX_TABLES: usize = 128;
/// Words of `create` that this program does not have.
const UNSUPPORTED: [&str; 3] = ["algo", "limit", "locked"];
const COMMANDS: [&str; 10] =
    ["create", "destroy", "add", "delete", "lookup", "list", "info", "detail", "flush", "swap"];
/// Tables of the host's addresses: of all, and of IPv6. No table that is created can have these names.
const OWN: [&str; 2] = ["(me)", "(me6)"];

/// The tables.
#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    numbers: BTreeMap<String, u16>,
    /// By number; `None` for numbers without a table.
    contents: Vec<Option<Arc<Table>>>,
    /// Tables that were used, and were not created before.
    not_created: BTreeSet<u16>,
}

impl Tables {
    /// Returns what the tables contain, by their numbers.
    pub(super) fn contents(&self) -> Vec<Option<Arc<Table>>> {
        self.contents.clone()
    }

    /// Names of the tables that commands can have.
    fn names(&self) -> impl Iterator<Item = &str> {
        self.numbers.keys().map(String::as_str).filter(|name| !OWN.contains(name))
    }

    /// Returns the number of a table; it is made if there is none, as ipfw does.
    ///
    /// # Errors
    /// A sentence, without a place.
    pub(super) fn used(&mut self, name: &str) -> std::result::Result<u16, String> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name == "all" || name.is_empty() || name.len() > 63 || !name.chars().all(is_valid) {
            return Err(format!("`{name}`: a table's name has 1 to 63 letters, digits and - _ ."));
        }
        let number = self.make(name)?;
        self.not_created.insert(number);
        Ok(number)
    }

    fn make(&mut self, name: &str) -> std::result::Result<u16, String> {
        let free = self.contents.iter().position(Option::is_none).unwrap_or(self.contents.len());
        if self.names().count() == MAX_TABLES && !OWN.contains(&name) {
            return Err(format!("there are {MAX_TABLES} tables, which is the most"));
        }
        if free == self.contents.len() {
            self.contents.push(None);
        }
        self.contents[free] = Some(Arc::default());
        self.numbers.insert(name.into(), free as u16);
        Ok(free as u16)
    }

    fn remove(&mut self, name: &str, number: u16) {
        self.numbers.remove(name);
        self.contents[usize::from(number)] = None;
        self.not_created.remove(&number);
    }

    /// Returns the number of the table of the host's addresses, which are these.
    pub(super) fn own(&mut self, only_v6: bool, addresses: &[IpAddr]) -> u16 {
        let name = OWN[usize::from(only_v6)];
        let known = self.numbers.get(name).copied();
        let number = known.unwrap_or_else(|| self.make(name).unwrap_or_default());
        self.contents[usize::from(number)] = Some(Arc::new(own_table(only_v6, addresses)));
        number
    }

    /// Returns the tables with other addresses of the host, if rules look at them and they have changed.
    pub(super) fn with_own(&self, addresses: impl FnOnce() -> Vec<IpAddr>) -> Option<Tables> {
        let used = OWN.map(|name| self.numbers.get(name).copied());
        if used == [None; 2] {
            return None;
        }
        let (addresses, mut changed) = (addresses(), None);
        for (number, only_v6) in used.into_iter().zip([false, true]) {
            let Some(number) = number else { continue };
            let new = own_table(only_v6, &addresses);
            if new.entries() != self.table(number).entries() {
                changed.get_or_insert_with(|| self.clone()).contents[usize::from(number)] = Some(Arc::new(new));
            }
        }
        changed
    }

    fn table(&self, number: u16) -> &Table {
        self.contents[usize::from(number)].as_deref().expect("a name has contents")
    }

    /// A table that is in use is copied before it is changed.
    fn table_mut(&mut self, number: u16) -> &mut Table {
        Arc::make_mut(self.contents[usize::from(number)].as_mut().expect("a name has contents"))
    }
}

fn own_table(only_v6: bool, addresses: &[IpAddr]) -> Table {
    let mut table = Table::default();
    for &address in addresses.iter().filter(|address| address.is_ipv6() || !only_v6) {
        table.insert(Prefix { address, bits: if address.is_ipv4() { 32 } else { 128 } }, 0);
    }
    table
}

impl Config {
    /// Performs `table`. With `quiet` an entry that is there, or not there, already is no error, as in ipfw.
    pub(super) fn table(&mut self, words: &mut Words<'_>, output: &mut String, quiet: bool) -> Result<()> {
        let name = words.required("the name of a table")?;
        let command = words.required("create, destroy, add, delete, lookup, list, info, flush or swap")?;
        let command = of_beginning(command, &COMMANDS).map_err(|hint| {
            words.error(format!(
                "`{command}`: give create, destroy, add, delete, lookup, list, info, flush or swap{hint}"
            ))
        })?;
        if name == "all" && matches!(command, "destroy" | "list" | "info" | "detail" | "flush") {
            let names: Vec<String> = self.tables.names().map(str::to_owned).collect();
            return names.iter().try_for_each(|name| self.of_table(name, command, words, output, quiet));
        }
        match command {
            "create" => return self.create_table(words, name),
            "add" if !self.tables.numbers.contains_key(name) => {
                self.tables.used(name).map_err(|e| words.error(e))?;
                let _ = writeln!(output, "table {name} created");
            }
            _ => {}
        }
        self.of_table(name, command, words, output, quiet)
    }

    /// Performs a command on a table that exists.
    fn of_table(
        &mut self,
        name: &str,
        command: &str,
        words: &mut Words<'_>,
        output: &mut String,
        quiet: bool,
    ) -> Result<()> {
        let number = self.table_number(name, words)?;
        match command {
            "add" => {
                words.accept("atomic");
                self.add_entries(words, number)?;
            }
            "delete" => self.delete_entries(words, number, quiet)?,
            "lookup" => {
                let prefix = prefix(words)?;
                let found = match prefix.address {
                    IpAddr::V4(address) => self.tables.table(number).get4(address.into()),
                    IpAddr::V6(address) => self.tables.table(number).get6(address.into()),
                };
                let value = found.ok_or_else(|| words.error(format!("{prefix} is not in table {name}")))?;
                let _ = writeln!(output, "{prefix} {value}");
            }
            "flush" => *self.tables.table_mut(number) = Table::default(),
            "swap" => {
                let other = words.required("the name of another table")?;
                let other = self.table_number(other, words)?;
                self.tables.contents.swap(number.into(), other.into());
            }
            "destroy" => {
                let user = self.rules.iter().find(|rule| {
                    rule.tests.iter().any(|literal| matches!(literal.test, Test::Table(_, table, _) if table == number))
                });
                if let Some(rule) = user {
                    return Err(words.error(format!("rule {} uses table {name}; delete the rule first", rule.number)));
                }
                self.tables.remove(name, number);
            }
            _ => self.print_table(name, command == "list", output),
        }
        Ok(())
    }

    fn table_number(&self, name: &str, words: &Words<'_>) -> Result<u16> {
        let number = self.tables.numbers.get(name).copied();
        number.ok_or_else(|| {
            let hint = did_you_mean(name, self.tables.names());
            words.error(format!("there is no table `{name}`; create it first: table {name} create{hint}"))
        })
    }

    fn create_table(&mut self, words: &mut Words<'_>, name: &str) -> Result<()> {
        let is_known = self.tables.numbers.contains_key(name);
        let number = self.tables.used(name).map_err(|e| words.error(e))?;
        let exists = !self.tables.not_created.remove(&number) && is_known;
        let error =
            words.error(format!("table {name} exists; `or-flush` makes it empty, `missing` leaves it as it is"));
        let (mut flush, mut missing) = (false, false);
        while let Some(word) = words.next() {
            match word {
                "type" => match words.required("the type addr")? {
                    "addr" => {}
                    other => return Err(words.error(format!("tables of type `{other}` are not supported; give addr"))),
                },
                // A value is a number, whatever it is for.
                "valtype" => drop(words.required("a type of values")?),
                "or-flush" => flush = true,
                "missing" => missing = true,
                other if UNSUPPORTED.contains(&other) => {
                    return Err(words.error(format!("the option `{other}` of tables is not supported; leave it out")));
                }
                other => {
                    let hint = did_you_mean(other, ["type", "valtype", "or-flush", "missing"]);
                    return Err(words.error(format!("`{other}`: give type addr, or-flush, missing, or nothing{hint}")));
                }
            }
        }
        if exists && flush {
            *self.tables.table_mut(number) = Table::default();
        }
        if exists && !flush && !missing { Err(error) } else { Ok(()) }
    }

    fn add_entries(&mut self, words: &mut Words<'_>, number: u16) -> Result<()> {
        if words.peek().is_none() {
            return Err(words.error_here("the line ends; give ADDRESS [VALUE]"));
        }
        let table = self.tables.table_mut(number);
        while words.peek().is_some() {
            let prefix = prefix(words)?;
            let value = match words.peek() {
                Some(word) if word.bytes().all(|byte| byte.is_ascii_digit()) => {
                    parse::number(words, "a value", 0, u32::MAX)?
                }
                _ => 0,
            };
            table.insert(prefix, value);
        }
        Ok(())
    }

    fn delete_entries(&mut self, words: &mut Words<'_>, number: u16, quiet: bool) -> Result<()> {
        if words.peek().is_none() {
            return Err(words.error_here("the line ends; give addresses"));
        }
        let table = self.tables.table_mut(number);
        while words.peek().is_some() {
            let prefix = prefix(words)?;
            if table.remove(prefix).is_none() && !quiet {
                return Err(words.error(format!("{prefix} is not in the table")));
            }
        }
        Ok(())
    }

    fn print_table(&self, name: &str, entries: bool, output: &mut String) {
        let Some(&number) = self.tables.numbers.get(name) else { return };
        let table = self.tables.table(number);
        let _ = writeln!(output, "--- table({name}), set(0) ---");
        if entries {
            for (prefix, value) in table.entries() {
                let _ = writeln!(output, "{prefix} {value}");
            }
        } else {
            let _ = writeln!(output, " kindex: {number}, type: addr\n items: {}", table.len());
        }
    }
}

fn prefix(words: &mut Words<'_>) -> Result<Prefix> {
    let word = words.required("an address")?;
    Prefix::parse(word).ok_or_else(|| words.error(format!("`{word}`: give ADDRESS or ADDRESS/BITS")))
}
