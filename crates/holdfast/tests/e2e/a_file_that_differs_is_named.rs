//! Files that a server reads besides those that its command names: a config that another one
//! includes, a module that it loads. If the backup's copy differs, its replica says which, and the
//! primary serves on alone; equal copies are protected.

use crate::world;
use holdfast_lab::load::{Group as LoadGroup, Spec, Workload};
use holdfast_lab::testbed::ours::{Group, GroupOptions};
use holdfast_lab::testbed::server::{DOCUMENT_BYTES, Program, Recipe};
use holdfast_lab::testbed::{Plan, Role, Testbed};
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

const MEMBERS: [Role; 2] = [Role::Primary, Role::Backup];
/// Folder of lighttpd's modules in Debian.
const MODULES: &str = "/usr/lib/lighttpd";
/// The module that lighttpd loads in this test.
const MODULE: &str = "modules/mod_status.so";

/// A web server whose config includes another file, on both members.
fn prepared(program: Program, testbed: &Testbed) -> Recipe {
    let [recipe, _] = MEMBERS.map(|role| {
        let host = testbed.host(role);
        let recipe = Recipe::prepare(program, host, DOCUMENT_BYTES[0]).expect("a directory");
        let own = host.outside().join("server");
        let config = fs::read_to_string(own.join("server.conf")).expect("a config");
        let (config, included) = match program {
            Program::Nginx => (
                config.replace("http {", "http {\n  include more.conf;"),
                "keepalive_timeout 61s;\n",
            ),
            _ => (config + "include \"more.conf\"\n", "server.modules = (\"mod_status\")\n"),
        };
        fs::write(own.join("server.conf"), config).expect("a config");
        fs::write(own.join("more.conf"), included).expect("an included file");
        recipe
    });
    recipe
}

/// lighttpd with its own directory of modules.
fn with_modules(testbed: &Testbed) -> Recipe {
    let mut recipe = prepared(Program::Lighttpd, testbed);
    for role in MEMBERS {
        let modules = testbed.host(role).outside().join("server/modules");
        fs::create_dir_all(&modules).expect("a directory");
        for module in fs::read_dir(MODULES).expect("lighttpd's modules").flatten() {
            fs::copy(module.path(), modules.join(module.file_name())).expect("a copy");
        }
    }
    recipe
        .command
        .extend(["-m".to_owned(), recipe.directory.join("modules").display().to_string()]);
    recipe
}

/// Path of a file in the server's directory on the backup.
fn of_backup(testbed: &Testbed, name: &str) -> std::path::PathBuf {
    testbed.host(Role::Backup).outside().join("server").join(name)
}

/// A load of small requests.
fn load(port: u16, duration_ms: u64) -> Spec {
    let groups = vec![LoadGroup::usual(Workload::HttpKeepalive, 2, port)];
    Spec { groups, ..world::counting(duration_ms, 0, None) }
}

/// Starts a pair whose backup has another file or module than the primary, and checks that it is
/// named.
fn assert_named(testbed: &Testbed, recipe: &Recipe, what: &str, path: &Path) {
    let group =
        Group::launch(testbed, recipe, &GroupOptions::default()).expect("the daemons start");
    let says = |role: Role, field: &str| {
        let status = group.status(role).unwrap_or_default();
        status[field].as_str().unwrap_or_default().to_owned()
    };
    world::wait_until("a replica that differs", || says(Role::Backup, "state") == "diverged");
    let reason =
        format!("the {what} {} differs between the members: make it equal", path.display());
    assert_eq!(says(Role::Backup, "reason"), reason);
    world::wait_until("the primary alone", || says(Role::Primary, "state") == "unprotected");
    let report = world::finish(world::start(testbed, &load(recipe.port, 500)), &group);
    assert!(report.total(|it| it.replies) > 0);
}

#[test]
fn an_included_file_that_differs_is_named() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = prepared(Program::Nginx, &testbed);
    fs::write(of_backup(&testbed, "more.conf"), "keepalive_timeout 62s;\n").expect("another file");
    assert_named(&testbed, &recipe, "file", &recipe.directory.join("more.conf"));
}

#[test]
fn a_module_that_differs_is_named() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = with_modules(&testbed);
    let theirs = fs::File::options().append(true).open(of_backup(&testbed, MODULE));
    theirs.expect("a module").write_all(b"\n").expect("one byte more");
    assert_named(&testbed, &recipe, "module", &recipe.directory.join(MODULE));
}

#[test]
fn equal_files_and_modules_are_protected() {
    let _limit = world::limit(Duration::from_secs(60));
    world::binary();
    let testbed = Testbed::build(&Plan::default()).expect("the testbed stands");
    let recipe = with_modules(&testbed);
    let group = Group::start(&testbed, &recipe, &GroupOptions::default()).expect("a group");
    // lighttpd ends a connection with its 65,535th request: 2 s of an idle machine.
    let run = world::start(&testbed, &load(recipe.port, 1500));
    std::thread::sleep(Duration::from_millis(700));
    assert_eq!(group.status(Role::Backup).expect("the daemon answers")["state"], "protected");
    world::signal(group.server_pid(Role::Primary).expect("a server"), "KILL");
    assert!(world::finish(run, &group).total(|it| it.replies) > 0);
    let status = group.status(Role::Backup).expect("the daemon answers");
    assert_eq!(status["role"], "primary", "{status}");
}
