// SPDX-License-Identifier: BSD-2-Clause
//! ipfw's rule language. What is not supported is refused by name.
//!
//! ```text
//! rule    = [NUMBER] ["set" N] ["prob" P] action ["log" ["logamount" N]] [("tag" | "untag") N] body ["//" text]
//! body    = [protocol "from" address [ports] "to" address [ports]] options
//! address = ["not"] ("any" | "table(" NAME ["," VALUE] ")" | LIST) | "{" address *("or" address) "}"
//! ```

mod address;
mod names;
mod option;
pub(crate) mod words;

use crate::packet::proto;
use crate::rule::{Action, Field, Limit, Literal, Log, Nets, Side, StateOption, Tag, Target, Test, limit_field};
use crate::syn_proxy::MIN_MSS;
use unetmap_suggest::did_you_mean;
use words::{SyntaxError, Words};

type Result<T> = std::result::Result<T, SyntaxError>;

/// Resolves the names in rules.
pub(crate) trait Context {
    /// The number of a table, which is made if there is none; a sentence if it cannot be.
    fn table(&mut self, name: &str) -> std::result::Result<u16, String>;
    /// The number of the table of the host's addresses, of both families or of IPv6; `None` if no port is an interface.
    fn own(&mut self, only_v6: bool) -> Option<u16>;
    /// The number of a state's name.
    fn state(&mut self, name: &str) -> u16;
    /// Names of the two ports, without `netmap:`.
    fn ports(&self) -> [&str; 2];
    /// Whether a port gets the copies of rules `tee` with this number.
    fn has_tee(&self, number: u16) -> bool;
}

/// A parsed rule that has no identity yet.
#[derive(Debug)]
pub(crate) struct ParsedRule {
    pub(crate) number: Option<u16>,
    pub(crate) set: u8,
    pub(crate) probability: Option<u32>,
    pub(crate) action: Action,
    pub(crate) log: Option<Log>,
    pub(crate) tag: Option<Tag>,
    pub(crate) tests: Vec<Literal>,
    pub(crate) state: Option<StateOption>,
    pub(crate) text: String,
}

/// Parses the words after `add`.
pub(crate) fn rule(words: &mut Words<'_>, context: &mut dyn Context) -> Result<ParsedRule> {
    let mut parser = Parser { words, context, tests: Vec::new(), state: None, text: String::new() };
    parser.rule()
}

/// Parses a number in a range.
pub(crate) fn number(words: &mut Words<'_>, what: &str, min: u32, max: u32) -> Result<u32> {
    let word = words.required(what)?;
    match word.parse() {
        Ok(number) if (min..=max).contains(&number) => Ok(number),
        _ => Err(words.error(format!("`{word}`: give {what}, {min} to {max}"))),
    }
}

/// Returns the number of a protocol that is given by its name or its number.
pub(crate) fn protocol_number(word: &str) -> Option<u8> {
    names::protocol(word).or_else(|| word.parse().ok())
}

struct Parser<'p, 'w> {
    words: &'p mut Words<'w>,
    context: &'p mut dyn Context,
    tests: Vec<Literal>,
    state: Option<StateOption>,
    /// The rule in the form that is listed.
    text: String,
}

/// Actions, for suggestions.
const ACTIONS: [&str; 23] = [
    "allow",
    "accept",
    "pass",
    "permit",
    "deny",
    "drop",
    "count",
    "skipto",
    "call",
    "return",
    "check-state",
    "reject",
    "unreach",
    "unreach6",
    "reset",
    "reset6",
    "pipe",
    "queue",
    "nat",
    "tee",
    "setdscp",
    "tcp-setmss",
    "synproxy",
];

/// Actions of ipfw that this program does not have, and what is there instead.
const UNSUPPORTED_ACTIONS: [(&str, &str); 14] = [
    ("divert", COPIES),
    ("netgraph", COPIES),
    ("ngtee", COPIES),
    ("fwd", NO_ROUTES),
    ("forward", NO_ROUTES),
    ("reass", "fragments pass one by one; the option `frag` matches the later ones"),
    ("setfib", "there are no routing tables here; leave the rule out"),
    ("setmark", "give `count tag N`, and test it by `tagged N`"),
    ("abort", "give deny"),
    ("abort6", "give deny"),
    ("nat64lsn", NO_NAT64),
    ("nat64stl", NO_NAT64),
    ("nptv6", NO_NAT64),
    ("eaction", "give the action by its own name, such as `tcp-setmss N`"),
];
const COPIES: &str = "`tee N` gives another program copies of packets by a port";
const NO_ROUTES: &str =
    "frames keep their MAC addresses; the host behind netmap:IF^ chooses next hops by its own tables";
const NO_NAT64: &str = "`nat N` translates IPv4";

impl Parser<'_, '_> {
    fn rule(&mut self) -> Result<ParsedRule> {
        let number = match self.words.peek().map(str::parse::<u32>) {
            Some(Ok(_)) => Some(number(self.words, "a rule number", 0, 65534)? as u16).filter(|&n| n > 0),
            _ => None,
        };
        let set = if self.words.accept("set") { number_u8(self.words, "a set", 31)? } else { 0 };
        let probability = if self.words.accept("prob") { Some(self.probability()?) } else { None };
        let action = self.action()?;
        let log = self.log()?;
        let tag = self.tag()?;
        for word in ["altq", "setmark"] {
            if self.words.accept(word) {
                return Err(self.words.error(format!("`{word}` is not supported; give tag N")));
            }
        }
        // A rule that only has a comment counts.
        if action != Action::CheckState && self.words.peek().is_some() {
            self.body()?;
        } else if action != Action::CheckState && !matches!(action, Action::Return) {
            self.show("ip from any to any");
        }
        if let Action::SynProxy { .. } = action {
            self.proxied()?;
        }
        self.words.end()?;
        if let Some(comment) = self.words.comment {
            self.show("//");
            self.show(comment);
        }
        let (tests, text) = (std::mem::take(&mut self.tests), std::mem::take(&mut self.text));
        Ok(ParsedRule { number, set, probability, action, log, tag, tests, state: self.state, text })
    }

    /// Completes a rule `synproxy`: it is about all segments of TCP, and has states as one with `keep-state`.
    fn proxied(&mut self) -> Result<()> {
        let excludes = |literal: &Literal| match literal.test {
            Test::TcpFlags(..) | Test::Established => true,
            Test::Proto(number) => !literal.negated && !literal.or && number != proto::TCP,
            _ => false,
        };
        if self.tests.iter().any(excludes) {
            let message = "`synproxy` is for all segments of TCP connections; leave out other protocols, `setup`, \
                           `established` and `tcpflags`";
            return Err(self.words.error(message));
        }
        let StateOption { name, limit, probe, defer } = self.state.unwrap_or(StateOption {
            name: self.context.state("default"),
            limit: None,
            probe: true,
            defer: false,
        });
        if !probe || defer {
            return Err(self.words.error("`synproxy` keeps states; leave out `record-state` and `defer-action`"));
        }
        self.state = Some(StateOption { name, limit, probe, defer });
        self.tests.push(Literal { test: Test::Proto(proto::TCP), negated: false, or: false });
        Ok(())
    }

    /// Appends a word to the listed form.
    fn show(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.text.push_str(text);
    }

    fn probability(&mut self) -> Result<u32> {
        let word = self.words.required("a probability")?;
        let value = unetmap_quantity::share(word);
        let value = value.map_err(|why| self.words.error(format!("`{word}`: {why}")))?;
        self.show(&format!("prob {value:.6}"));
        Ok((value * f64::from(1u32 << 31)) as u32)
    }

    fn action(&mut self) -> Result<Action> {
        let Some(word) = self.words.next() else {
            return match self.words.comment {
                Some(_) => {
                    self.show("count");
                    Ok(Action::Count)
                }
                None => Err(self.words.error_here("the line ends; give an action, such as allow or deny")),
            };
        };
        let (action, shown) = match word {
            "allow" | "accept" | "pass" | "permit" => (Action::Allow, "allow".to_owned()),
            "deny" | "drop" => (Action::Deny, "deny".into()),
            "count" => (Action::Count, "count".into()),
            "return" => (Action::Return, "return".into()),
            "reject" => (Action::Unreach(1), "reject".into()),
            "reset" => (Action::Reset, "reset".into()),
            "reset6" => (Action::Reset6, "reset6".into()),
            "skipto" | "call" | "pipe" | "queue" | "nat" | "tee" => self.numbered_action(word)?,
            "unreach" => {
                let code = self.words.required("the code of an ICMP error")?;
                let number = names::unreach(code).or_else(|| code.parse().ok());
                let number =
                    number.ok_or_else(|| self.words.error(format!("`{code}`: give a code such as host or port")))?;
                (Action::Unreach(number), if number == 1 { "reject".into() } else { format!("unreach {code}") })
            }
            "unreach6" => {
                let code = self.words.required("the code of an ICMPv6 error")?;
                let number = names::unreach6(code).or_else(|| code.parse().ok());
                let number = number
                    .ok_or_else(|| self.words.error(format!("`{code}`: give a code such as no-route or port")))?;
                (Action::Unreach6(number), format!("unreach6 {code}"))
            }
            // Not ipfw's own.
            "synproxy" => self.syn_proxy()?,
            "check-state" => {
                let name = self.state_name(true)?;
                self.state = Some(StateOption { name, limit: None, probe: true, defer: false });
                (Action::CheckState, String::new())
            }
            "setdscp" => self.dscp()?,
            "tcp-setmss" => {
                let mss = number(self.words, "a maximum segment size", 1, u16::MAX.into())? as u16;
                (Action::SetMss(mss), format!("tcp-setmss {mss}"))
            }
            _ => return Err(self.no_action(word)),
        };
        if action != Action::CheckState {
            self.show(&shown);
        }
        Ok(action)
    }

    /// The error about a word in place of an action.
    fn no_action(&self, word: &str) -> SyntaxError {
        match UNSUPPORTED_ACTIONS.iter().find(|(known, _)| *known == word) {
            Some((_, instead)) => self.words.error(format!("the action `{word}` is not supported: {instead}")),
            None => {
                let hint = did_you_mean(word, ACTIONS);
                self.words.error(format!("`{word}` is no action; give one such as allow or deny{hint}"))
            }
        }
    }

    fn dscp(&mut self) -> Result<(Action, String)> {
        let word = self.words.required("a DSCP, such as ef, or tablearg")?;
        let target = match (word, names::dscp(word)) {
            ("tablearg", _) => Target::TableArg,
            (_, Some(dscp)) => Target::Number(dscp.into()),
            _ => {
                return Err(self
                    .words
                    .error(format!("`{word}`: give a DSCP, such as ef or af11, 0 to 63, or tablearg")));
            }
        };
        Ok((Action::SetDscp(target), format!("setdscp {word}")))
    }

    /// Parses the number of an action, which has one.
    fn numbered_action(&mut self, word: &str) -> Result<(Action, String)> {
        let target = self.target()?;
        if let ("tee", Target::Number(number)) = (word, target)
            && !self.context.has_tee(number)
        {
            let message = format!("`tee {number}`: no port gets the copies; start with --tee {number}=PORT");
            return Err(self.words.error(message));
        }
        let shown = match target {
            Target::Number(number) => format!("{word} {number}"),
            Target::TableArg => format!("{word} tablearg"),
        };
        let action = match word {
            "call" => Action::Call(target),
            "skipto" => Action::SkipTo(target),
            "pipe" => Action::Pipe(target),
            "nat" => Action::Nat(target),
            "tee" => Action::Tee(target),
            _ => Action::Queue(target),
        };
        Ok((action, shown))
    }

    fn syn_proxy(&mut self) -> Result<(Action, String)> {
        let (mut mss, mut scale, mut shown) = (0, None, "synproxy".to_owned());
        if self.words.accept("mss") {
            mss = number(self.words, "a maximum segment size", MIN_MSS.into(), u16::MAX.into())? as u16;
            shown += &format!(" mss {mss}");
        }
        if self.words.accept("wscale") {
            let told = number_u8(self.words, "a window scale", 14)?;
            scale = Some(told);
            shown += &format!(" wscale {told}");
        }
        Ok((Action::SynProxy { mss, scale }, shown))
    }

    fn target(&mut self) -> Result<Target> {
        if self.words.accept("tablearg") {
            return Ok(Target::TableArg);
        }
        Ok(Target::Number(number(self.words, "a number or tablearg", 1, 65535)? as u16))
    }

    /// Reads `:name`, and writes the word before it and the name to the listed form.
    fn state_name(&mut self, check: bool) -> Result<u16> {
        let name = match self.words.peek().and_then(|word| word.strip_prefix(':')) {
            Some(name) => {
                self.words.next();
                name
            }
            None => "default",
        };
        if name.is_empty() || name.len() > 63 {
            return Err(self.words.error("the name of a state has 1 to 63 characters"));
        }
        if check {
            self.show("check-state");
        }
        self.show(&format!(":{name}"));
        match name {
            "any" if check => Ok(crate::rule::ANY_STATE),
            "any" => Err(self.words.error("`:any` is no name for a state; only check-state has it")),
            _ => Ok(self.context.state(name)),
        }
    }

    fn log(&mut self) -> Result<Option<Log>> {
        if !self.words.accept("log") {
            return Ok(None);
        }
        let limit = if self.words.accept("logamount") { number(self.words, "packets", 0, u32::MAX)? } else { 0 };
        if self.words.accept("logdst") {
            return Err(self.words.error("`logdst` is not supported"));
        }
        self.show("log");
        if limit > 0 {
            self.show(&format!("logamount {limit}"));
        }
        Ok(Some(Log { limit }))
    }

    fn tag(&mut self) -> Result<Option<Tag>> {
        let word = match self.words.peek() {
            Some(word @ ("tag" | "untag")) => word,
            _ => return Ok(None),
        };
        self.words.next();
        let target = match self.words.accept("tablearg") {
            true => Target::TableArg,
            false => Target::Number(number(self.words, "a tag or tablearg", 1, 65534)? as u16),
        };
        match target {
            Target::Number(number) => self.show(&format!("{word} {number}")),
            Target::TableArg => self.show(&format!("{word} tablearg")),
        }
        if let Some("tag" | "untag") = self.words.peek() {
            return Err(self.words.error_here("a rule has one of tag and untag"));
        }
        Ok(Some(if word == "tag" { Tag::Set(target) } else { Tag::Clear(target) }))
    }

    fn body(&mut self) -> Result<()> {
        if self.has_protocol() {
            self.protocols()?;
            if !self.words.accept("from") {
                return Err(self.words.error_here("give `from` after the protocol"));
            }
            self.show("from");
            self.addresses(Side::Src)?;
            self.optional_ports(Side::Src)?;
            if !self.words.accept("to") {
                return Err(self.words.error_here("give `to` after the source"));
            }
            self.show("to");
            self.addresses(Side::Dst)?;
            self.optional_ports(Side::Dst)?;
        }
        while self.words.peek().is_some() {
            self.option_or_block()?;
        }
        Ok(())
    }

    /// Whether the body begins with a protocol and `from`.
    fn has_protocol(&self) -> bool {
        let mut at = 0;
        if self.words.peek() == Some("{") {
            while !matches!(self.words.peek_at(at), None | Some("}")) {
                at += 1;
            }
        } else if self.words.peek() == Some("not") {
            at = 1;
        }
        self.words.peek_at(at + 1) == Some("from") || self.words.peek() == Some("from")
    }

    fn protocols(&mut self) -> Result<()> {
        self.block(|parser| {
            let negated = parser.negation();
            let word = parser.words.required("a protocol")?;
            let test = parser.protocol(word)?;
            Ok(Some(Literal { test, negated, or: false }))
        })
    }

    /// Parses one item, or several alternatives in braces. The closure returns `None` for an item that always matches.
    fn block(&mut self, item: impl Fn(&mut Self) -> Result<Option<Literal>>) -> Result<()> {
        if !self.words.accept("{") {
            let literal = item(self)?;
            self.tests.extend(literal);
            return Ok(());
        }
        self.show("{");
        let begin = self.tests.len();
        loop {
            let literal = item(self)?;
            let literal = literal.unwrap_or(Literal { test: Test::Always(true), negated: false, or: false });
            self.tests.push(Literal { or: true, ..literal });
            if self.words.accept("}") {
                break;
            }
            if !self.words.accept("or") {
                return Err(self.words.error_here("give `or` or `}`"));
            }
            self.show("or");
        }
        self.show("}");
        if let Some(last) = self.tests[begin..].last_mut() {
            last.or = false;
        }
        Ok(())
    }

    fn negation(&mut self) -> bool {
        let mut negated = false;
        while self.words.accept("not") {
            negated = !negated;
        }
        if negated {
            self.show("not");
        }
        negated
    }

    fn protocol(&mut self, word: &str) -> Result<Test> {
        if let Some((family, shown)) = names::family(word) {
            self.show(shown);
            return Ok(family.map_or(Test::Always(true), Test::Family));
        }
        let number = protocol_number(word).ok_or_else(|| {
            let hint = did_you_mean(word, names::protocols());
            self.words.error(format!("`{word}` is no protocol that is known here; give its number{hint}"))
        })?;
        self.show(word);
        // Number 0 means any protocol, as in ipfw.
        Ok(if number == 0 { Test::Always(true) } else { Test::Proto(number) })
    }

    fn addresses(&mut self, side: Side) -> Result<()> {
        self.block(|parser| {
            let negated = parser.negation();
            let word = parser.words.required("an address")?;
            let test = parser.address(side, word)?;
            Ok(Some(Literal { test, negated, or: false }))
        })
    }

    fn optional_ports(&mut self, side: Side) -> Result<()> {
        let begins_ports = |word: Option<&str>| word.is_some_and(names::begins_ports);
        let negated = self.words.peek() == Some("not");
        let block = self.words.peek() == Some("{");
        let first = self.words.peek_at(usize::from(negated || block));
        let first = if block && first == Some("not") { self.words.peek_at(2) } else { first };
        if !begins_ports(first) {
            return Ok(());
        }
        let field = if side == Side::Src { Field::SrcPort } else { Field::DstPort };
        self.block(|parser| {
            let negated = parser.negation();
            let word = parser.words.required("a port")?;
            let ranges = parser.ranges(word, names::port)?;
            Ok(Some(Literal { test: Test::Number(field, ranges), negated, or: false }))
        })
    }

    /// Parses a list of numbers and ranges, and shows it.
    fn ranges(&mut self, word: &str, name: impl Fn(&str) -> Option<u16>) -> Result<Box<[(u16, u16)]>> {
        let value = |text: &str| text.parse().ok().or_else(|| name(text));
        let mut ranges = Vec::new();
        for item in word.split(',') {
            let range = match value(item) {
                Some(number) => Some((number, number)),
                None => item.split_once('-').and_then(|(from, to)| Some((value(from)?, value(to)?))),
            };
            match range.filter(|(from, to)| from <= to) {
                Some(range) => ranges.push(range),
                None => {
                    return Err(self
                        .words
                        .error(format!("`{item}`: give numbers N or ranges N-M, separated by commas")));
                }
            }
        }
        self.show(word);
        Ok(ranges.into())
    }

    fn limit(&mut self) -> Result<Limit> {
        let mut fields = 0;
        loop {
            fields |= match self.words.peek() {
                Some("src-addr") => limit_field::SRC_ADDR,
                Some("src-port") => limit_field::SRC_PORT,
                Some("dst-addr") => limit_field::DST_ADDR,
                Some("dst-port") => limit_field::DST_PORT,
                _ => break,
            };
            let word = self.words.required("a field")?;
            self.show(word);
        }
        if fields == 0 {
            return Err(self.words.error_here("give src-addr, src-port, dst-addr or dst-port, and then a number"));
        }
        let count = number(self.words, "a number of states", 1, 65535)?;
        self.show(&count.to_string());
        Ok(Limit { fields, count })
    }
}

fn number_u8(words: &mut Words<'_>, what: &str, max: u8) -> Result<u8> {
    Ok(number(words, what, 0, max.into())? as u8)
}

/// Whether a list of networks has none.
fn is_empty(nets: &Nets) -> bool {
    nets.v4.is_empty() && nets.v6.is_empty()
}

#[cfg(test)]
mod tests {
    use crate::Config;

    /// Each suggestion for an unknown word is itself a known word.
    #[test]
    fn suggestions_are_words_of_the_language() {
        let message = |rule: String| Config::new(["a", "b"], 1, false).apply(&rule).err().map(|e| e.message);
        for action in super::ACTIONS {
            let message = message(format!("add {action} 1 ip from any to any"));
            assert!(!message.is_some_and(|message| message.starts_with(&format!("`{action}` is no"))), "{action}");
        }
        for option in super::option::OPTIONS {
            let message = message(format!("add allow ip from any to any {option} 1"));
            assert!(!message.is_some_and(|message| message.starts_with(&format!("`{option}` is no"))), "{option}");
        }
    }
}
