// SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 OR MIT

//! The program as its users meet it: text in, text, files and exit code out.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

fn golden(name: &str) -> String {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    fs::read_to_string(path.join(name)).unwrap()
}

fn scratch(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn run(input: &str, args: &[&str]) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_s2report"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // A program that refuses its options does not wait for input.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn table_and_picture_are_the_golden_ones() {
    let svg = scratch("golden.svg");
    let args = ["--kernel", "7.3.4", "--svg", svg.to_str().unwrap()];
    let output = run(&golden("rows.jsonl"), &args);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(stdout(&output), golden("table.txt"));
    assert_eq!(fs::read_to_string(svg).unwrap(), golden("destroy.svg"));
}

#[test]
fn a_picture_of_one_side_has_no_word_about_the_other() {
    let rows = golden("rows.jsonl");
    let upstream: Vec<&str> = rows.lines().filter(|row| row.contains("\"c\"")).collect();
    let svg = scratch("one-side.svg");
    run(&upstream.join("\n"), &["--svg", svg.to_str().unwrap()]);
    let picture = fs::read_to_string(svg).unwrap();
    assert!(picture.contains(">upstream<"), "{picture}");
    assert!(!picture.contains("ours"), "{picture}");
}

#[test]
fn document_reads_back_with_nulls_and_unknown_keys() {
    let json = scratch("roundtrip.json");
    let json = json.to_str().unwrap();
    run(
        &golden("rows.jsonl"),
        &["--kernel", "7.3.4", "--json", json],
    );
    let text = fs::read_to_string(json).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(document["schema"], 1);
    assert_eq!(document["kernel"], "7.3.4");
    for (line, row) in golden("rows.jsonl").lines().zip(0..) {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!(document["rows"][row], line);
    }
    assert_eq!(stdout(&run("", &[json])), golden("table.txt"));
}

#[test]
fn runs_of_one_case_show_the_median_but_the_worst_leak() {
    let line = golden("rows.jsonl").lines().next().unwrap().to_owned();
    let slow = line.replace("211000000", "300000000");
    let leaky = line
        .replace("211000000", "100000000")
        .replace("\"leaked\": 0", "\"leaked\": 7");
    let output = run(&[line, slow, leaky].join("\n"), &[]);
    let table = stdout(&output);
    assert!(table.contains(" 211 M "), "{table}");
    assert!(table.contains("7/-"), "{table}");
}

#[test]
fn a_figure_that_only_some_benches_report_can_be_compared() {
    let output = run(&golden("rows.jsonl"), &["--metric", "close_ns"]);
    let table = stdout(&output);
    assert!(table.contains("close_ns, in nanoseconds"), "{table}");
    assert!(table.contains("256 MiB    7.31 M"), "{table}");
}

#[test]
fn bad_rows_are_named() {
    let rows = golden("rows.jsonl");
    let bad = [
        (
            rows.replacen("\"tlbis\": null, ", "", 1),
            "line 1: key `tlbis` is missing",
        ),
        (
            rows.replacen("\"vhe\"", "\"el3\"", 1),
            "line 7: unknown variant `el3`",
        ),
        (
            rows.replacen("\"ipa_bits\": 48", "\"ipa_bits\": 64", 2),
            "line 1: `ipa_bits` 64",
        ),
        (
            rows.replacen("\"pages\": 128", "\"pages\": 0", 1),
            "line 7: `insns_per_page`",
        ),
        (
            rows.replacen("\"empty\"", "\"<b>\"", 1),
            "line 1: `case` \"<b>\"",
        ),
        (
            rows.replacen("\"leaked\": 0", "\"leaked\": -1", 1),
            "line 1: invalid value",
        ),
        (rows + "[1]\n", "line 8: a row is a JSON object"),
        ("TAP version 13\n".into(), "line 1: expected"),
        (
            "{\"schema\": 2, \"rows\": []}".into(),
            "schema 2 is not known",
        ),
        ("{\"schema\": 1}".into(), "`rows` is not an array"),
    ];
    for (input, message) in bad {
        let output = run(&input, &[]);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(stderr(&output).contains(message), "{}", stderr(&output));
    }
}

fn judged(limits: &str) -> (Option<i32>, String) {
    // Tests run side by side: a file for each call.
    static CALLS: AtomicU32 = AtomicU32::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let path = scratch(&format!("limits-{call}.toml"));
    fs::write(&path, limits).unwrap();
    let args = ["--kernel", "7.3.4", "--limits", path.to_str().unwrap()];
    let output = run(&golden("rows.jsonl"), &args);
    (output.status.code(), stdout(&output) + &stderr(&output))
}

#[test]
fn a_limit_is_kept_up_to_its_figure() {
    let of = |max| format!("[[limit]]\nmetric='insns_per_page'\nmode=['nvhe']\nmax={max}\n");
    let (code, text) = judged(&of("4"));
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("ok   nvhe: insns_per_page at most 4, is 4"),
        "{text}"
    );
    let (code, text) = judged(&of("3.99"));
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("FAIL nvhe: insns_per_page at most 3.99, is 4"),
        "{text}"
    );
}

#[test]
fn a_figure_that_is_missing_fails_but_a_case_that_was_not_run_is_skipped() {
    let (code, text) = judged("[[limit]]\nmetric='close_insns'\nmode=['vhe']\nmax=1e9\n");
    assert_eq!(code, Some(1));
    assert!(
        text.contains("FAIL vhe: close_insns at most 1.00 G, not measured"),
        "{text}"
    );
    let (code, text) = judged("[[limit]]\nmetric='leaked'\ncase=['sparse']\nmax=0\n");
    assert_eq!(code, Some(0));
    assert!(
        text.contains("skip sparse: leaked at most 0, not run"),
        "{text}"
    );
    let (code, _) = judged("[[limit]]\nmetric='leaked'\nkernel='6.12'\nmax=0\n");
    assert_eq!(code, Some(0), "limits of another kernel do not count");
}

#[test]
fn a_limit_is_about_ours_unless_it_says_otherwise() {
    let of = |who| format!("[[limit]]\nmetric='destroy_insns'\ncase=['empty']\nmax=1e6\n{who}");
    assert_eq!(judged(&of("")).0, Some(0));
    assert_eq!(judged(&of("impl=['c']\n")).0, Some(1));
}

#[test]
fn a_limit_can_be_a_share_of_upstreams_figure() {
    let of = |max, case| {
        let about = format!("metric='destroy_insns'\nmode=['nvhe']\ncase=['{case}']\n");
        format!("[[limit]]\nagainst='upstream'\n{about}max={max}\n")
    };
    let (code, text) = judged(&of("0.04", "dense-4k"));
    assert_eq!(code, Some(0), "{text}");
    let (code, text) = judged(&of("0.03", "dense-4k"));
    assert_eq!(code, Some(1), "{text}");
    let over = "FAIL nvhe dense-4k: destroy_insns over upstream's at most 0.0300, is 0.03";
    assert!(text.contains(over), "{text}");
    let (code, text) = judged(&of("1", "dense-2m"));
    assert_eq!(code, Some(0), "{text}");
    assert!(
        text.contains("skip nvhe dense-2m"),
        "nothing to compare: {text}"
    );
}

#[test]
fn a_limit_can_be_growth_over_the_smallest_figure() {
    let of = |max, modes| {
        let about = format!("metric='destroy_insns'\nmode={modes}\nmax={max}\n");
        judged(&format!("[[limit]]\nagainst='smallest'\n{about}"))
    };
    let (code, text) = of("60", "['vhe','nvhe']");
    assert_eq!(code, Some(1), "{text}");
    let over = "FAIL vhe nvhe: destroy_insns over the smallest at most 60, is 64";
    assert!(text.contains(over), "{text}");
    assert_eq!(of("70", "['vhe','nvhe']").0, Some(0));
    let (_, text) = of("1", "['vhe']");
    assert!(text.contains("skip vhe"), "one row shows no growth: {text}");
}

#[test]
fn a_limit_can_be_about_each_page() {
    let of = |max| {
        let about = format!("metric='destroy_insns'\nmode=['nvhe']\nmax={max}\n");
        judged(&format!("[[limit]]\nagainst='pages'\n{about}"))
    };
    let (code, text) = of("3.9");
    assert_eq!(code, Some(1), "{text}");
    let past = "FAIL nvhe: destroy_insns per page at most 3.90, is 4";
    assert!(text.contains(past), "{text}");
    assert_eq!(of("4").0, Some(0));
}

#[test]
fn a_limit_with_an_unknown_word_is_refused() {
    let (code, text) = judged("[[limit]]\nmetric='leaked'\nmax=0\nmodes=['vhe']\n");
    assert_eq!(code, Some(2));
    assert!(text.contains("unknown field `modes`"), "{text}");
}

#[test]
fn the_limits_of_the_bench_catch_a_leak() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let limits = root.join("scripts/bench/limits.toml");
    let args = ["--kernel", "7.3.4", "--limits", limits.to_str().unwrap()];
    let output = run(&golden("rows.jsonl"), &args);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        text.contains("FAIL every case: leaked at most 0, is 2"),
        "{text}"
    );
    assert!(text.contains("insns_per_page at most 3, is 4\n"), "{text}");
}

#[test]
fn max_gives_the_verdict_that_bisecting_needs() {
    let verdict = |max, case| {
        let args = ["--metric", "destroy_insns", "--max", max, "--case", case];
        run(&golden("rows.jsonl"), &args).status.code()
    };
    assert_eq!(verdict("211000000", "empty"), Some(0));
    assert_eq!(verdict("210999999", "empty"), Some(1));
    assert_eq!(verdict("1", "sparse"), Some(125), "no such row");
    assert_eq!(
        verdict("1e9", "dense-4k"),
        Some(125),
        "one row has no figure"
    );
}

#[test]
fn an_unknown_metric_is_answered_with_the_known_ones() {
    let output = run("", &["--metric", "joules"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        stderr(&output).contains("destroy_insns"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn the_machine_is_remembered_beside_the_figures() {
    let json = scratch("host.json");
    let words = [
        "--host",
        "cpu=Neoverse-N1",
        "--host",
        "governor=performance",
    ];
    let args = [&words[..], &["--json", json.to_str().unwrap()]].concat();
    let output = run(&golden("rows.jsonl"), &args);
    assert!(stdout(&output).contains("cpu: Neoverse-N1\ngovernor: performance\n\n"));

    // A document hands it on.
    let document = fs::read_to_string(json).unwrap();
    assert!(stdout(&run(&document, &[])).contains("cpu: Neoverse-N1\n"));
    let bad = document.replace("\"Neoverse-N1\"", "1");
    assert!(stderr(&run(&bad, &[])).contains("host"));
    assert_eq!(run("", &["--host", "cpu"]).status.code(), Some(2));
}
