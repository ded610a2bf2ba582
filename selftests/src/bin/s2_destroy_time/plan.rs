// SPDX-License-Identifier: GPL-2.0

//! From the words of the command line to a list of tests.

use crate::options::Options;
use s2_selftests::spec::Backing;
use s2_selftests::spec::Case;
use s2_selftests::spec::Guest;
use s2_selftests::spec::Order;
use s2_selftests::spec::Spec;

/// What runs when nothing in particular is asked for.
const STANDARD: [(Case, Backing, Order, Guest); 18] = {
    use Backing::*;
    use Case::*;
    use Guest::*;
    use Order::*;
    [
        (Empty, Page4k, CloseFirst, Normal),
        (OneMib, Page4k, CloseFirst, Normal),
        (Dense4k, Page4k, CloseFirst, Normal),
        (Dense4k, Page4k, UnmapFirst, Normal),
        (Dense4k, Page4k, Sigkill, Normal),
        (Dense2m, Thp, CloseFirst, Normal),
        (Dense2m, Thp, UnmapFirst, Normal),
        (Dense2m, Thp, Sigkill, Normal),
        (Dense2m, Hugetlb, CloseFirst, Normal),
        (Sparse, Page4k, CloseFirst, Normal),
        (HeldVcpuFd, Page4k, CloseFirst, Normal),
        (HeldKvmRun, Page4k, CloseFirst, Normal),
        (Empty, Page4k, CloseFirst, Protected),
        (OneMib, Page4k, CloseFirst, Protected),
        (Dense4k, Page4k, CloseFirst, Protected),
        (Dense4k, Page4k, UnmapFirst, Protected),
        (Dense4k, Page4k, Sigkill, Protected),
        (Dense4k, Kernel, CloseFirst, None),
    ]
};

/// What --cycles repeats when nothing in particular is asked for.
const CYCLED: [(Case, Backing, Order, Guest); 4] = {
    use Backing::*;
    use Case::*;
    use Guest::*;
    use Order::*;
    [
        (OneMib, Page4k, CloseFirst, Normal),
        (OneMib, Page4k, UnmapFirst, Normal),
        (OneMib, Page4k, Sigkill, Normal),
        (OneMib, Page4k, CloseFirst, Protected),
    ]
};

/// The tests `options` ask for, in the order they run.
pub(crate) fn specs(options: &Options) -> Vec<Spec> {
    let combinations = if selects(options) {
        selected(options)
    } else if options.cycles.is_some() {
        CYCLED.to_vec()
    } else {
        STANDARD.to_vec()
    };
    let ipas = match options.ipa.as_slice() {
        [] => vec![Option::None],
        bits => bits.iter().copied().map(Some).collect(),
    };
    let spec = |(case, backing, order, guest), ipa| Spec {
        case,
        size: size(case, options.size),
        ipa,
        backing,
        order,
        guest,
        vcpus: options.vcpus,
    };
    combinations
        .into_iter()
        .flat_map(|combination| ipas.iter().map(move |&ipa| spec(combination, ipa)))
        .collect()
}

fn selects(options: &Options) -> bool {
    !(options.case.is_empty()
        && options.backing.is_empty()
        && options.order.is_empty()
        && options.guest.is_empty())
}

fn selected(options: &Options) -> Vec<(Case, Backing, Order, Guest)> {
    let cases = or(&options.case, Case::Dense4k);
    let mut all = Vec::new();
    for &case in &cases {
        for backing in or(&options.backing, usual_backing(case)) {
            for order in or(&options.order, Order::CloseFirst) {
                for guest in guests(backing, &options.guest) {
                    all.push((case, backing, order, guest));
                }
            }
        }
    }
    all
}

fn guests(backing: Backing, given: &[Guest]) -> Vec<Guest> {
    match backing {
        Backing::Kernel => vec![Guest::None],
        _ => or(given, Guest::Normal),
    }
}

fn or<T: Copy>(given: &[T], usual: T) -> Vec<T> {
    match given {
        [] => vec![usual],
        words => words.to_vec(),
    }
}

fn usual_backing(case: Case) -> Backing {
    match case {
        Case::Dense2m => Backing::Thp,
        _ => Backing::Page4k,
    }
}

fn size(case: Case, given: Option<u64>) -> u64 {
    match case {
        Case::Empty => 0,
        Case::OneMib => 1 << 20,
        Case::Sparse => given.unwrap_or(64 << 30),
        Case::HeldVcpuFd | Case::HeldKvmRun => given.unwrap_or(1 << 20),
        Case::Dense4k | Case::Dense2m | Case::Scattered => given.unwrap_or(64 << 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    fn plan(words: &str) -> Vec<String> {
        let args = std::iter::once("s2_destroy_time").chain(words.split_whitespace());
        specs(&Options::try_parse_from(args).unwrap())
            .iter()
            .map(Spec::to_string)
            .collect()
    }

    #[test]
    fn the_standard_list_fits_together() {
        for spec in specs(&Options::try_parse_from(["s2_destroy_time"]).unwrap()) {
            assert_eq!(spec.check(), Ok(()), "{spec}");
        }
    }

    #[test]
    fn words_multiply_and_the_rest_is_usual() {
        assert_eq!(
            plan("--case dense-4k --size 256M --order close-first,sigkill"),
            [
                "dense-4k 256M 4k close-first normal",
                "dense-4k 256M 4k sigkill normal"
            ]
        );
        assert_eq!(
            plan("--case dense-2m"),
            ["dense-2m 64M thp close-first normal"]
        );
        assert_eq!(
            plan("--case 1m --ipa 40,48"),
            [
                "1m 1M ipa-40 4k close-first normal",
                "1m 1M ipa-48 4k close-first normal"
            ]
        );
    }

    #[test]
    fn a_table_in_the_kernel_has_no_guest() {
        assert_eq!(
            plan("--backing kernel --size 128G"),
            ["dense-4k 128G kernel close-first"]
        );
    }

    #[test]
    fn an_unknown_word_is_answered_with_the_valid_ones() {
        let error = Options::try_parse_from(["x", "--case", "dence-4k"]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("dense-4k") && text.contains("held-kvm-run"));
        assert_eq!(error.exit_code(), 2);
    }
}
