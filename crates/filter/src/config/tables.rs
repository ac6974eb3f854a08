// SPDX-License-Identifier: BSD-2-Clause
//! The commands of tables.

use std::fmt::Write as _;
use std::sync::Arc;

use super::{Config, Result};
use crate::parse;
use crate::parse::words::Words;
use crate::rule::Test;
use crate::table::{Prefix, Table};

/// ipfw's `tables_max`.
const MAX_TABLES: usize = 128;
/// Words of `create` that this program does not have.
const UNSUPPORTED: [&str; 5] = ["algo", "limit", "locked", "missing", "or-flush"];

impl Config {
    pub(super) fn table(&mut self, words: &mut Words<'_>, output: &mut String) -> Result<()> {
        let name = words.required("the name of a table")?;
        let command = words.required("create, destroy, add, delete, lookup, list, info, flush or swap")?;
        if name == "all" && matches!(command, "list" | "info") {
            for name in self.tables.keys() {
                self.print_table(name, command == "list", output);
            }
            return Ok(());
        }
        if command == "create" {
            return self.create_table(words, name);
        }
        let Some(&number) = self.tables.get(name) else {
            return Err(words.error(format!("there is no table `{name}`; create it first: table {name} create")));
        };
        match command {
            "add" => {
                words.accept("atomic");
                self.add_entries(words, number)?;
            }
            "delete" => self.delete_entries(words, number)?,
            "lookup" => {
                let prefix = prefix(words)?;
                let found = match prefix.address {
                    std::net::IpAddr::V4(address) => self.contents(number).get4(address.into()),
                    std::net::IpAddr::V6(address) => self.contents(number).get6(address.into()),
                };
                let value = found.ok_or_else(|| words.error(format!("{prefix} is not in table {name}")))?;
                let _ = writeln!(output, "{prefix} {value}");
            }
            "list" | "info" | "detail" => self.print_table(name, command == "list", output),
            "flush" => self.contents[usize::from(number)] = Some(Arc::default()),
            "swap" => {
                let other = words.required("the name of another table")?;
                let Some(&other) = self.tables.get(other) else {
                    return Err(words.error(format!("there is no table `{other}`")));
                };
                self.contents.swap(number.into(), other.into());
            }
            "destroy" => {
                let user = self.rules.iter().find(|rule| {
                    rule.tests.iter().any(|literal| matches!(literal.test, Test::Table(_, table, _) if table == number))
                });
                if let Some(rule) = user {
                    return Err(words.error(format!("rule {} uses table {name}; delete the rule first", rule.number)));
                }
                self.tables.remove(name);
                self.contents[usize::from(number)] = None;
            }
            other => {
                return Err(words.error(format!(
                    "`{other}`: give create, destroy, add, delete, lookup, list, info, flush or swap"
                )));
            }
        }
        Ok(())
    }

    fn create_table(&mut self, words: &mut Words<'_>, name: &str) -> Result<()> {
        let is_valid = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name == "all" || name.is_empty() || name.len() > 63 || !name.chars().all(is_valid) {
            return Err(words.error(format!("`{name}`: a table's name has 1 to 63 letters, digits and - _ .")));
        }
        if self.tables.contains_key(name) {
            return Err(words.error(format!("table {name} exists")));
        }
        while let Some(word) = words.next() {
            match word {
                "type" => match words.required("the type addr")? {
                    "addr" => {}
                    other => return Err(words.error(format!("tables of type `{other}` are not supported; give addr"))),
                },
                // A value is a number, whatever it is for.
                "valtype" => drop(words.required("a type of values")?),
                other if UNSUPPORTED.contains(&other) => {
                    return Err(words.error(format!("the option `{other}` of tables is not supported")));
                }
                other => return Err(words.error(format!("`{other}`: give type addr, or nothing"))),
            }
        }
        let free = self.contents.iter().position(Option::is_none).unwrap_or(self.contents.len());
        if free == MAX_TABLES {
            return Err(words.error(format!("there are {MAX_TABLES} tables, which is the most")));
        }
        if free == self.contents.len() {
            self.contents.push(None);
        }
        self.contents[free] = Some(Arc::default());
        self.tables.insert(name.into(), free as u16);
        Ok(())
    }

    fn contents(&self, number: u16) -> &Table {
        self.contents[usize::from(number)].as_deref().expect("a name has contents")
    }

    /// A table that is in use is copied before it is changed.
    fn contents_mut(&mut self, number: u16) -> &mut Table {
        Arc::make_mut(self.contents[usize::from(number)].as_mut().expect("a name has contents"))
    }

    fn add_entries(&mut self, words: &mut Words<'_>, number: u16) -> Result<()> {
        if words.peek().is_none() {
            return Err(words.error_here("the line ends; give ADDRESS [VALUE]"));
        }
        let table = self.contents_mut(number);
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

    fn delete_entries(&mut self, words: &mut Words<'_>, number: u16) -> Result<()> {
        if words.peek().is_none() {
            return Err(words.error_here("the line ends; give addresses"));
        }
        let table = self.contents_mut(number);
        while words.peek().is_some() {
            let prefix = prefix(words)?;
            if table.remove(prefix).is_none() {
                return Err(words.error(format!("{prefix} is not in the table")));
            }
        }
        Ok(())
    }

    fn print_table(&self, name: &str, entries: bool, output: &mut String) {
        let Some(&number) = self.tables.get(name) else { return };
        let table = self.contents(number);
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
