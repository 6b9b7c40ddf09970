use super::*;
use crate::servers::report::{Found, Verdict};
use clap::Parser;
use std::collections::BTreeSet;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: ServersArgs,
}

fn parse(words: &str) -> Result<ServersArgs, clap::Error> {
    Line::try_parse_from(format!("servers {words}").split_whitespace()).map(|line| line.args)
}

#[test]
fn every_row_has_a_name_of_its_own_a_client_and_a_talk() {
    let rows = table::rows();
    let names: BTreeSet<&str> = rows.iter().map(|row| row.name).collect();
    assert_eq!(names.len(), rows.len());
    for row in &rows {
        assert!(!row.packages.is_empty() && row.port > 0, "{}", row.name);
        assert!(!(row.clients)(&row::At::default()).is_empty(), "{}", row.name);
        assert!(!(row.talk.turn)(1, 2).hear.is_empty(), "{}", row.name);
    }
}

/// The names in the first column of the page's table.
fn names_in(page: &str) -> Vec<String> {
    let rows = page.lines().filter(|line| line.starts_with("| "));
    let first = |line: &str| line.split('|').nth(1).unwrap_or_default().trim().to_owned();
    rows.map(first).filter(|name| name != "server").collect()
}

#[test]
fn the_page_has_every_server_of_the_table_and_no_other() {
    let page = include_str!("../../../../docs/SERVERS.md");
    let names: Vec<&str> = table::rows().iter().map(|row| row.name).collect();
    assert_eq!(names_in(page), names, "make it anew: see its first lines");
}

#[test]
fn a_page_tells_what_was_found() {
    let rows = table::rows();
    let mut report = Report::new(1, 5);
    let mut found = Found::of(&rows[0], 5);
    found.verdict = Verdict::Failed("a | /run/holdfast-lab/hf-1-2/host/server/b, c".to_owned());
    report.add(found.clone());
    assert!(!report.is_good());
    let page = report.markdown(&rows);
    assert!(page.contains("FAILED: a \\| …/server/b, c |"), "{page}");
    assert_eq!(names_in(&page).len(), rows.len());
    // What is found again takes its place.
    found.verdict = Verdict::Refused("so it is".to_owned());
    report.add(found);
    assert!(report.is_good() && report.servers.len() == 1);
    let again: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
    assert_eq!(again.markdown(&rows), report.markdown(&rows));
}

#[test]
fn a_page_is_made_of_results_and_nothing_is_tried() {
    assert!(parse("--markdown").is_err());
    assert!(parse("--results file --markdown redis").is_err());
    assert!(parse("--results file --markdown").unwrap().markdown);
}

#[test]
fn a_name_that_is_not_in_the_table_is_refused() {
    let told = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        chosen(table::rows(), &names).map(|rows| rows.len()).map_err(|error| error.to_string())
    };
    assert_eq!(told(&["redis", "nginx"]), Ok(2));
    assert!(
        told(&["redos"]).unwrap_err().starts_with("no server is called redos; there are nginx,")
    );
}
