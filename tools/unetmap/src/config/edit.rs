// SPDX-License-Identifier: BSD-2-Clause
//! Changes of the file's text. What is not changed keeps its place and its form, and every comment stays.
//!
//! First, what is no longer said is cut out of the text, around its comments; a TOML library would remove these with
//! it. Then the library sets what is new.

use std::ops::Range;

use toml_edit::{Array, ArrayOfTables, Document, DocumentMut, Item, Key, Table, TableLike, Value, value};

use unetmap::abi::printable::{is_printable, toml_string};

use super::Setting;
use super::file::parse;

/// Returns the text that says `wanted`, which is sorted, made from one that is valid.
///
/// # Errors
/// A sentence: the text is not valid, or is written in a way in which it cannot be changed without loss.
pub(super) fn edit(before: &str, wanted: &[Setting]) -> Result<String, String> {
    let at_line = |(line, why): (usize, String)| format!("line {line}: {why}");
    let said = parse(before).map_err(at_line)?;
    let new: Vec<&Setting> = wanted.iter().filter(|wanted| !said.iter().any(|said| said.is_met_by(wanted))).collect();
    let cut = cut(before, wanted);
    // The file is of more worth than this change of it, which is looked at before it is made.
    let mut forms = [true, false].into_iter().filter_map(|append| with(&cut, &new, append));
    forms
        .find(|after| says_all(after, wanted) && has_comments(after, comments(before)))
        .ok_or_else(|| "it is written in a way in which it cannot be changed; give each entry a line of its own".into())
}

/// Whether the text says what is wanted, and nothing else.
fn says_all(text: &str, wanted: &[Setting]) -> bool {
    parse(text).is_ok_and(|says| {
        wanted.iter().all(|wanted| says.iter().any(|says| says.is_met_by(wanted)))
            && says.iter().all(|says| wanted.iter().any(|wanted| says.is_met_by(wanted)))
    })
}

fn has_comments(text: &str, wanted: Vec<&str>) -> bool {
    let mut left = comments(text);
    wanted.iter().all(|wanted| left.iter().position(|of| of == wanted).map(|at| left.swap_remove(at)).is_some())
}

/// The text with new settings: those of new tables appended to it, or, if not `append`, where the library puts them,
/// before the last comments. The latter is for tables that are written in one line.
fn with(text: &str, new: &[&Setting], append: bool) -> Option<String> {
    let mut document: DocumentMut = text.parse().ok()?;
    let mut appended = DocumentMut::new();
    for setting in new {
        let [section, name, ..] = setting.place();
        let tables = document.get(section);
        let is_there = match setting {
            Setting::Persistent { .. } => {
                let mut ports = tables.and_then(Item::as_array_of_tables).into_iter().flatten();
                ports.any(|port| port.get("name").and_then(Item::as_str) == Some(name))
            }
            _ => tables.and_then(Item::as_table_like).is_some_and(|tables| tables.contains_key(name)),
        };
        put(if is_there || !append { &mut document } else { &mut appended }, setting);
    }
    let (text, appended) = (document.to_string(), appended.to_string());
    let between = match text.ends_with('\n') {
        _ if text.is_empty() || appended.is_empty() => "",
        true => "\n",
        false => "\n\n",
    };
    Some(text + between + &appended)
}

/// Cuts out of a valid text what is not wanted. Comments stay in their places.
fn cut(text: &str, wanted: &[Setting]) -> String {
    let Ok(document) = Document::parse(text) else { return text.into() };
    let mut cuts = Cuts { text, wanted, ranges: Vec::new() };
    for (section, item) in document.iter() {
        match (section, item.as_table_like()) {
            ("persistent", _) => cuts.persistent(item),
            (_, Some(tables)) => tables.iter().for_each(|(name, _)| cuts.named(section, tables, name)),
            _ => {}
        }
    }
    cuts.apply()
}

/// The ranges of a text that are cut out of it.
struct Cuts<'a> {
    text: &'a str,
    wanted: &'a [Setting],
    ranges: Vec<Range<usize>>,
}

impl Cuts<'_> {
    /// Whether a wanted setting has a place that begins so.
    fn has(&self, place: &[&str]) -> bool {
        self.wanted.iter().any(|wanted| wanted.place().starts_with(place))
    }

    fn persistent(&mut self, item: &Item) {
        for table in item.as_array_of_tables().into_iter().flatten() {
            let name = table.get("name").and_then(Item::as_str).unwrap_or_default();
            if !self.has(&["persistent", name]) {
                self.ranges.extend(table.span());
                table.iter().for_each(|(key, _)| self.key(table, key));
            }
        }
    }

    /// Cuts out of the table `name`.
    fn named(&mut self, section: &str, tables: &dyn TableLike, name: &str) {
        let Some((key, item)) = tables.get_key_value(name) else { return };
        let Some(table) = item.as_table_like() else { return };
        if !self.has(&[section, name]) {
            // `[section.name]`, or `name = {}`; a dotted table has only its keys.
            self.ranges.extend(item.as_table().filter(|table| !table.is_dotted()).and_then(Table::span));
            if item.as_inline_table().is_some_and(|table| !table.is_dotted()) {
                return self.entry(key, item);
            }
        }
        for (key, item) in table.iter() {
            match item.as_array() {
                Some(list) if self.has(&[section, name, key]) => {
                    let is_cut = |of: &&Value| !self.has(&[section, name, key, of.as_str().unwrap_or_default()]);
                    let cut: Vec<_> = list.iter().filter(is_cut).filter_map(Value::span).collect();
                    cut.into_iter().for_each(|element| self.element(element));
                }
                _ if self.has(&[section, name, key]) => {}
                _ => self.key(table, key),
            }
        }
    }

    fn key(&mut self, table: &dyn TableLike, name: &str) {
        if let Some((key, item)) = table.get_key_value(name) {
            self.entry(key, item);
        }
    }

    /// Cuts `key = value`, with the names before a dotted key, and the comma of an inline table.
    fn entry(&mut self, key: &Key, item: &Item) {
        let (Some(key), Some(value)) = (key.span(), item.span()) else { return };
        self.element(dotted_start(self.text, key.start)..value.end);
    }

    /// Cuts an element of an array or an inline table, and the comma after it, or before it if it is the last.
    /// Elsewhere there is none.
    fn element(&mut self, element: Range<usize>) {
        let (text, next) = (self.text, skip_blanks(self.text, element.end));
        let before = text[..element.start].trim_end();
        if let Some(after) = text[next..].strip_prefix(',') {
            let blanks = after.len() - after.trim_start_matches(' ').len();
            self.ranges.push(next..next + 1 + blanks);
        } else if text[next..].starts_with([']', '}']) && before.ends_with(',') {
            let is_alone = text[before.len()..element.start].contains('\n');
            self.ranges.push(before.len() - 1..if is_alone { before.len() } else { element.start });
        }
        self.ranges.push(element);
    }

    /// The text without the ranges, except the comments in them, and without the lines of which nothing is left.
    fn apply(mut self) -> String {
        self.ranges.sort_by_key(|range| (range.start, range.end));
        // TOML has no zero bytes: they mark where something was cut.
        let (mut left, mut end) = (String::new(), 0);
        for range in self.ranges {
            left += self.text.get(end..range.start).unwrap_or_default();
            left.push('\0');
            end = end.max(range.end);
            comments(&self.text[range.start..range.end]).iter().for_each(|comment| left += &format!("{comment}\n\0"));
        }
        left += &self.text[end..];
        let mut lines: Vec<String> = Vec::new();
        let mut after_cut = false;
        for line in left.split_inclusive('\n') {
            let rest = line.replace('\0', "");
            let (is_blank, was_cut) = (rest.trim().is_empty(), rest.len() < line.len());
            match rest.trim_start() {
                _ if is_blank && was_cut => after_cut = true,
                // Of the blank lines before and after it one is left.
                _ if is_blank && after_cut && lines.last().is_none_or(|last| last.trim().is_empty()) => {}
                text => {
                    lines.push(if was_cut && text.starts_with('#') { text.into() } else { rest });
                    after_cut = false;
                }
            }
        }
        lines.concat()
    }
}

/// The beginning of a key whose last name begins at `at`: `a."b".c`.
fn dotted_start(text: &str, at: usize) -> usize {
    let Some(before) = text[..at].trim_end_matches([' ', '\t']).strip_suffix('.') else { return at };
    let before = before.trim_end_matches([' ', '\t']);
    let quote = before.chars().next_back().filter(|last| "\"'".contains(*last));
    let start = match quote {
        Some(quote) => before[..before.len() - 1].rfind(quote),
        None => {
            let is_bare = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
            Some(before.trim_end_matches(is_bare).len())
        }
    };
    start.map_or(at, |start| dotted_start(text, start))
}

/// The first place from `at` on that is neither blank nor in a comment.
fn skip_blanks(text: &str, at: usize) -> usize {
    let rest = text[at..].trim_start();
    let here = text.len() - rest.len();
    match rest.strip_prefix('#') {
        Some(comment) => skip_blanks(text, here + 1 + comment.find('\n').unwrap_or(comment.len())),
        None => here,
    }
}

/// The comments of a text, or of a part that begins outside of all strings.
fn comments(text: &str) -> Vec<&str> {
    let (mut found, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find(['#', '"', '\'']) {
        rest = &rest[at..];
        let (opening, is_basic) = match rest.get(..3) {
            _ if rest.starts_with('#') => {
                let end = rest.find('\n').unwrap_or(rest.len());
                found.push(rest[..end].trim_end());
                rest = &rest[end..];
                continue;
            }
            Some(three @ ("\"\"\"" | "'''")) => (three, three.starts_with('"')),
            _ => (&rest[..1], rest.starts_with('"')),
        };
        rest = after_string(&rest[opening.len()..], opening, is_basic);
    }
    found
}

/// Returns the text after a string, from behind its opening quotes; in a basic one, a backslash escapes a quote.
fn after_string<'a>(text: &'a str, closing: &str, is_basic: bool) -> &'a str {
    let mut at = 0;
    while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
        if rest.starts_with(closing) {
            at += closing.len();
            // `"""a""""` ends with a quote that belongs to it.
            let quote = &closing[..1];
            let more =
                if closing.len() == 3 { text[at..].len() - text[at..].trim_start_matches(quote).len() } else { 0 };
            return &text[at + more.min(2)..];
        }
        let skipped = if is_basic && rest.starts_with('\\') { 2 } else { 1 };
        at += rest.chars().take(skipped).map(char::len_utf8).sum::<usize>();
    }
    ""
}

/// Sets what the document does not say, or says otherwise.
fn put(document: &mut DocumentMut, setting: &Setting) {
    let [section, name, key, _] = setting.place();
    let number_or_text = |text: &str| text.parse::<i64>().map_or_else(|_| quoted(text), Value::from);
    match setting {
        Setting::Persistent { name, config } => {
            let numbers: Vec<String> = config.iter().map(u32::to_string).collect();
            let list = document.entry(section).or_insert(Item::ArrayOfTables(ArrayOfTables::new()));
            let Some(list) = list.as_array_of_tables_mut() else { return };
            let has_name = |table: &&mut Table| table.get("name").and_then(Item::as_str) == Some(name.as_str());
            if let Some(table) = list.iter_mut().find(has_name) {
                return set(table, "config", numbers.join(",").into());
            }
            let mut table = Table::new();
            table["name"] = value(quoted(name));
            table["config"] = value(numbers.join(","));
            list.push(table);
        }
        Setting::Attach { interface, .. } => {
            let table = table(document, section, name);
            match table.get_mut(key).and_then(Item::as_array_mut) {
                Some(list) => list.push(quoted(interface)),
                None => set(table, key, Array::from_iter([quoted(interface)]).into()),
            }
        }
        Setting::Age { seconds: value, .. } | Setting::Port { value, .. } | Setting::Interface { value, .. } => {
            set(table(document, section, name), key, number_or_text(value));
        }
    }
}

/// Sets a key, whose comment stays.
fn set(table: &mut dyn TableLike, key: &str, mut to: Value) {
    match table.get_mut(key).and_then(Item::as_value_mut) {
        Some(old) => {
            *to.decor_mut() = old.decor().clone();
            *old = to;
        }
        None => _ = table.insert(key, value(to)),
    }
}

/// Finds or makes `[section.name]`.
fn table<'a>(document: &'a mut DocumentMut, section: &str, name: &str) -> &'a mut dyn TableLike {
    let mut parent = Table::new();
    parent.set_implicit(true);
    let tables = document.entry(section).or_insert(Item::Table(parent));
    let tables = tables.as_table_like_mut().expect("a table, as the file was checked");
    let named = tables.entry_format(&key(name)).or_insert(Item::Table(Table::new()));
    named.as_table_like_mut().expect("a table, as the file was checked")
}

/// A text as a value, of which everything that is not printable is escaped: an editor shows what it says.
fn quoted(text: &str) -> Value {
    let escaped = (!text.chars().all(is_printable)).then(|| toml_string(text).parse().ok()).flatten();
    escaped.unwrap_or_else(|| text.into())
}

/// The same, as a key.
fn key(text: &str) -> Key {
    let escaped = (!text.chars().all(is_printable)).then(|| toml_string(text).parse().ok()).flatten();
    escaped.unwrap_or_else(|| Key::new(text))
}

#[cfg(test)]
mod tests;
