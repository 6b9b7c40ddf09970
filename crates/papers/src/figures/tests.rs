use super::*;

fn differing(id: &str) -> Vec<String> {
    let figure = FIGURES.iter().find(|it| it.id == id).unwrap();
    let finished = finish(*figure, 0, 1);
    assert!(!finished.drawn.table.rows.is_empty() && !finished.drawn.charts.is_empty(), "{id}");
    // A range that everything is in would be no comparison.
    for it in &finished.findings {
        let limits = it.accepted.is_none_or(|(low, high)| {
            low.is_finite()
                && high.is_finite()
                && !(low <= 0.0 && high >= 1.0 && it.what.contains("share"))
        });
        assert!(limits, "{id}: {}: {}", it.what, it.limits());
    }
    let differs = finished.findings.into_iter().filter(|it| it.verdict == Verdict::Differs);
    differs.map(|it| format!("{id}: {}: {}, not {}", it.what, it.ours(), it.paper)).collect()
}

/// Only figures that are fast enough for every run of the tests.
#[test]
fn the_papers_numbers_are_met() {
    let cheap = [
        "fig07", "fig08", "fig09", "fig12", "fig13", "fig14", "fig18", "fig20", "fig21", "fig22",
        "fig23", "fig24", "fig25",
    ];
    let differing: Vec<String> = cheap.iter().flat_map(|id| differing(id)).collect();
    assert_eq!(differing, ["fig18: raw, longest at 3 s, s: 5.403, not less than 5.3"]);
}

#[test]
fn names_are_unique_and_seeds_give_intervals() {
    let mut ids: Vec<&str> = FIGURES.iter().map(|it| it.id).collect();
    ids.dedup();
    assert_eq!(ids.len(), FIGURES.len());
    let finished = finish(fig12::FIGURE, 0, 3);
    assert!(finished.findings.iter().any(|it| it.plus_minus > 0.0));
    let page = report::page(&[finished], Some(3));
    assert!(
        page.contains("<svg") && !page.contains("http://")
            || page.matches("http://").count()
                == page.matches("http://www.w3.org/2000/svg").count()
    );
}

/// There are four verdicts, and each shows its reason.
#[test]
fn a_comparison_shows_its_limits_and_its_distance() {
    let of = |check: Check| Finding::of(&check, &[check.ours]);
    let far = of(Check::new("surges", "3", 2.0, (2.0, 4.0)));
    assert_eq!((far.apart(), far.limits()), ("-33.3 %".into(), "2.000 to 4.000".into()));
    assert_eq!(far.verdict(), "same direction");
    let near = of(Check::new("a time", "2.1", 2.15, (2.0, 2.2)));
    assert_eq!((near.apart(), near.verdict()), ("+2.4 %".into(), "equal within 5 %".into()));
    let unsaid = of(Check::unsaid("a share", "(not told apart)", 0.4));
    assert_eq!(
        (unsaid.limits(), unsaid.verdict()),
        ("".into(), "the paper gives no number".into())
    );
    let findings = vec![far, near, unsaid];
    let (id, title, again, drawn) = ("fig18", "", String::new(), Drawn::default());
    let line = run::headline(&[Finished { id, title, again, drawn, findings }]);
    let counts = "2 of 2 comparisons agree with the papers: 1 are equal within 5 %, 1 have the same \
                  direction; 0 differ. Of 1 more";
    assert!(line.starts_with(counts), "{line}");
}

/// What differs stands above all figures, with its reason, and only there and in its own figure.
#[test]
fn the_report_begins_with_what_differs() {
    let of = |check: Check| Finding::of(&check, &[check.ours]);
    let findings = vec![
        of(Check::new("a bound", "less than 5.3", 5.4, (5.0, 5.5)).because("It is a bound.")),
        of(Check::new("a number", "2", 9.0, (1.0, 3.0))),
        of(Check::new("what agrees", "2", 2.0, (1.0, 3.0))),
    ];
    let (id, title, again, drawn) = ("fig18", "", String::new(), Drawn::default());
    let page = report::page(&[Finished { id, title, again, drawn, findings }], None);
    let (top, figure) = page.split_once("<nav>").expect("a list of the figures");
    assert!(top.contains("1 of 3 comparisons agree") && top.contains("What differs"), "{top}");
    assert!(top.contains("a bound<br><small>It is a bound.</small>"), "{top}");
    assert!(top.contains("a number<br><small>The reason is not known.</small>"), "{top}");
    assert!(!top.contains("what agrees") && figure.contains("what agrees"));
    assert!(top.contains("prefers-color-scheme:dark"));
}

/// Lines of several seeds become their mean, with error bars; dots that are elsewhere do not.
#[test]
fn charts_of_several_seeds_show_their_means() {
    let drawn = |y: f64, x: f64| {
        let lines = vec![
            context::line("same places", vec![(1.0, y), (2.0, 5.0)]),
            context::dots("other places", vec![(x, y)]),
        ];
        Drawn { charts: vec![Chart { lines, ..Chart::default() }], ..Drawn::default() }
    };
    let mut all = [drawn(1.0, 0.1), drawn(3.0, 0.2)];
    average(&mut all);
    let lines = &all[0].charts[0].lines;
    assert_eq!(lines[0].points, [(1.0, 2.0), (2.0, 5.0)]);
    assert!(lines[0].errors[0] > 0.0 && lines[0].errors[1] == 0.0);
    assert_eq!(lines[1].points, [(0.1, 1.0)]);
    assert!(lines[1].errors.is_empty());
}

#[test]
fn unknown_figures_are_told_all_at_once() {
    let args = |names: &[&str]| RunArgs {
        figures: names.iter().map(|it| (*it).to_owned()).collect(),
        output: "/nosuch".into(),
        seeds: None,
        quick: false,
        seed: 0,
        json: false,
    };
    let error = run(&args(&["fig7", "fig12", "zzz"]), &[]).expect_err("no such figures");
    assert!(error.is::<NoFigure>());
    let said = error.to_string();
    assert!(said.contains("unknown figure \"fig7\"\n  remedy: did you mean `fig"), "{said}");
    assert!(said.contains("unknown figure \"zzz\"\n  remedy: `holdfast-lab list`"), "{said}");
}

#[test]
fn an_empty_cell_of_a_table_is_empty() {
    let table = Table { columns: vec!["a".into(), "b".into()], rows: vec![vec![1.5, f64::NAN]] };
    assert_eq!(table.to_csv(), "a,b\n1.5,\n");
}

/// A measured figure comes from outside, and is judged as a simulated one is.
#[test]
fn a_measured_figure_is_told_how_much_and_judged_like_the_others() {
    fn taken(effort: &Effort) -> anyhow::Result<Drawn> {
        anyhow::ensure!(effort.quick, "it takes too long");
        let checks = vec![Check::new("rounds", "3", effort.rounds.unwrap_or(1) as f64, (1.0, 9.0))];
        Ok(Drawn { checks, ..Drawn::default() })
    }
    let figure = Measured { id: "wire", title: "", measure: taken };
    let effort = Effort { seed: 4, rounds: Some(3), quick: true };
    let finished = measure(&figure, &effort).unwrap();
    assert_eq!(finished.again, "run wire --seed 4 --seeds 3 --quick");
    assert_eq!(finished.findings[0].verdict, Verdict::Equal);
    assert!(measure(&figure, &Effort { quick: false, ..effort }).is_err());
}
