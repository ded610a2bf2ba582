// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! Which way memory comes back: one table, and the facts that bend it.
//!
//! What was asked for explicitly wins. Nothing is decided by a look at what the
//! host happens to have, and whoever gets another mode than the one asked for is
//! told so, with the remedy.

use serde::{Deserialize, Serialize};

/// What a request asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// Whatever suits the snapshot and the purpose.
    #[default]
    Auto,
    /// Read all of it before the guest runs.
    Copy,
    /// Map the file privately.
    Mmap,
    /// Load pages as they are touched; an error where that is impossible.
    OnDemand,
    /// The same, but as [`Asked::Auto`] where it is impossible.
    PreferOnDemand,
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// All of it is read before the guest runs.
    Copy,
    /// A private copy-on-write map of the file.
    Mmap,
    /// Pages are loaded as the guest touches them.
    OnDemand,
}

/// What kind of memory the guest had, and will have again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Private, in the host's base pages.
    Private,
    /// Shared with other processes.
    Shared,
    /// In explicit huge pages.
    Hugepages,
}

/// What the restored guest is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The one guest that goes on: it will need all of its memory again.
    Resume,
    /// One of many that share most of it.
    Clone,
}

/// What is known of the file and the host. Each error is the reason, in words.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Whether a hard link in the clone's own directory holds the memory file.
    pub held: Result<(), String>,
    /// Whether the file is as it was written; a map could not tell later.
    pub unchanged: Result<(), String>,
    /// Whether this process may use userfaultfd for a guest.
    pub userfault: Result<(), String>,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// What was asked for.
    pub asked: Asked,
    /// What happens.
    #[serde(rename = "effective")]
    pub mode: Mode,
    /// Why that is not what was asked for or usual, and what to do about it.
    pub notes: Vec<String>,
}

/// What was asked for explicitly is impossible.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// userfaultfd may not be used.
    #[error("memory mode on-demand is impossible: {0}; ask for prefer-on-demand to fall back")]
    OnDemand(String),
    /// A map of a file that has changed would show the guest the changes.
    #[error("memory mode mmap is impossible: {0}; copy checks every block and may still do")]
    Mmap(String),
}

/// What the table says about one combination.
#[derive(Clone, Copy)]
enum Rule {
    Copy,
    /// Copy, and say why not mmap.
    Warn,
    Mmap,
    /// Mmap if the file is held and unchanged, else copy with the reason.
    Held,
    Demand,
    /// On-demand if possible, else what the first line says, with the reason.
    Prefer,
}

/// Lines: [`Asked`], in its order. Columns: [`Kind`] and within it [`Purpose`].
const MATRIX: [[[Rule; 2]; 3]; 5] = {
    use Rule::{Copy, Demand, Held, Mmap, Prefer, Warn};
    [
        // private: resume, clone   shared: resume, clone   hugepages: resume, clone
        [[Copy, Held], [Warn, Warn], [Warn, Warn]], // auto
        [[Copy, Copy], [Copy, Copy], [Copy, Copy]], // copy
        [[Mmap, Mmap], [Warn, Warn], [Warn, Warn]], // mmap
        [[Demand, Demand], [Demand, Demand], [Demand, Demand]], // on-demand
        [[Prefer, Prefer], [Prefer, Prefer], [Prefer, Prefer]], // prefer-on-demand
    ]
};

/// Decides how memory comes back.
pub fn choose(asked: Asked, kind: Kind, purpose: Purpose, facts: &Facts) -> Result<Plan, Refused> {
    let mut notes = Vec::new();
    let mode = decide(asked, kind, purpose, facts, &mut notes)?;
    Ok(Plan { asked, mode, notes })
}

fn decide(
    asked: Asked,
    kind: Kind,
    purpose: Purpose,
    facts: &Facts,
    notes: &mut Vec<String>,
) -> Result<Mode, Refused> {
    match MATRIX[asked as usize][kind as usize][purpose as usize] {
        Rule::Copy => Ok(Mode::Copy),
        Rule::Warn => {
            notes.push(no_map(kind).to_owned());
            Ok(Mode::Copy)
        }
        Rule::Mmap => match &facts.unchanged {
            Ok(()) => Ok(Mode::Mmap),
            Err(reason) => Err(Refused::Mmap(reason.clone())),
        },
        Rule::Held => match facts.held.as_ref().and(facts.unchanged.as_ref()) {
            Ok(()) => Ok(Mode::Mmap),
            Err(reason) => {
                notes.push(format!("copied instead of mapped: {reason}"));
                Ok(Mode::Copy)
            }
        },
        Rule::Demand => match &facts.userfault {
            Ok(()) => Ok(Mode::OnDemand),
            Err(reason) => Err(Refused::OnDemand(reason.clone())),
        },
        Rule::Prefer => match &facts.userfault {
            Ok(()) => Ok(Mode::OnDemand),
            Err(reason) => {
                notes.push(format!("not loaded on demand: {reason}"));
                decide(Asked::Auto, kind, purpose, facts, notes)
            }
        },
    }
}

/// Why such memory is not mapped from a file, with the remedy.
fn no_map(kind: Kind) -> &'static str {
    match kind {
        Kind::Hugepages => {
            "copied: huge pages cannot be mapped from a snapshot; ask for on-demand, or take \
             the snapshot of a guest that was made without hugepages"
        }
        _ => {
            "copied: shared memory cannot be mapped privately from a snapshot; ask for on-demand, \
             or take the snapshot of a guest that was made without shared memory"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Outcomes for private, shared and hugepages, each resume and clone:
    /// `C`opy, `M`map, on-`D`emand, `!` refused; lower case with a note.
    const EXPECTED: [(&str, Asked, &str); 20] = {
        use Asked::{Auto, Copy, Mmap, OnDemand, PreferOnDemand};
        [
            ("", Auto, "CM cc cc"),
            ("", Copy, "CC CC CC"),
            ("", Mmap, "MM cc cc"),
            ("", OnDemand, "DD DD DD"),
            ("", PreferOnDemand, "DD DD DD"),
            ("held", Auto, "Cc cc cc"),
            ("held", Copy, "CC CC CC"),
            ("held", Mmap, "MM cc cc"),
            ("held", OnDemand, "DD DD DD"),
            ("held", PreferOnDemand, "DD DD DD"),
            ("unchanged", Auto, "Cc cc cc"),
            ("unchanged", Copy, "CC CC CC"),
            ("unchanged", Mmap, "!! cc cc"),
            ("unchanged", OnDemand, "DD DD DD"),
            ("unchanged", PreferOnDemand, "DD DD DD"),
            ("userfault", Auto, "CM cc cc"),
            ("userfault", Copy, "CC CC CC"),
            ("userfault", Mmap, "MM cc cc"),
            ("userfault", OnDemand, "!! !! !!"),
            ("userfault", PreferOnDemand, "cm cc cc"),
        ]
    };

    fn facts(missing: &str) -> Facts {
        let fact = |name: &str| match name == missing {
            true => Err(format!("no {name}")),
            false => Ok(()),
        };
        Facts {
            held: fact("held"),
            unchanged: fact("unchanged"),
            userfault: fact("userfault"),
        }
    }

    fn letter(result: &Result<Plan, Refused>) -> char {
        let Ok(plan) = result else { return '!' };
        let letter = match plan.mode {
            Mode::Copy => 'C',
            Mode::Mmap => 'M',
            Mode::OnDemand => 'D',
        };
        match plan.notes.is_empty() {
            true => letter,
            false => letter.to_ascii_lowercase(),
        }
    }

    #[test]
    fn every_combination_gets_its_mode_and_whoever_gets_another_is_told() {
        for (missing, asked, expected) in EXPECTED {
            let mut outcomes = Vec::new();
            for kind in [Kind::Private, Kind::Shared, Kind::Hugepages] {
                let each = [Purpose::Resume, Purpose::Clone].map(|purpose| {
                    let result = choose(asked, kind, purpose, &facts(missing));
                    let told = match &result {
                        Ok(plan) => plan.notes.join(" "),
                        Err(refused) => refused.to_string(),
                    };
                    let letter = letter(&result);
                    if letter.is_lowercase() && kind != Kind::Private {
                        assert!(told.contains("ask for on-demand"), "no remedy: {told}");
                    }
                    if letter == '!' || (letter == 'c' && kind == Kind::Private) {
                        assert!(told.contains(&format!("no {missing}")), "no reason: {told}");
                    }
                    letter
                });
                outcomes.push(each.iter().collect::<String>());
            }
            assert_eq!(
                outcomes.join(" "),
                expected,
                "{asked:?} without {missing:?}"
            );
        }
    }

    #[test]
    fn an_unknown_word_is_an_error() {
        let parse = serde::de::IntoDeserializer::<serde::de::value::Error>::into_deserializer;
        assert_eq!(Asked::deserialize(parse("on-demand")), Ok(Asked::OnDemand));
        let error = Asked::deserialize(parse("lazy")).unwrap_err().to_string();
        assert!(
            error.contains("lazy") && error.contains("prefer-on-demand"),
            "{error}"
        );
    }
}
