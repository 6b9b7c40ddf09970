//! Servers beside the five that the project is measured with: each is recorded
//! under load and replayed.

use crate::harness::{compiled, installed, observe, run, scratch, sh, wait_for, write};
use holdfast_wire::shm::mode;

#[test]
fn beanstalkd_replays_jobs() {
    let program = installed("/usr/bin/beanstalkd");
    run(&[program, "-l", "127.0.0.1", "-p", "16400"], 16400, "beanstalkd", || {
        wait_for(16400);
        sh(
            "for c in 1 2 3; do (for i in $(seq 50); do printf 'put 0 0 60 4\\r\\njob%s\\r\\nreserve\\r\\ndelete %s\\r\\nstats\\r\\n' $c $i; done; printf 'quit\\r\\n') | timeout 5 nc -N 127.0.0.1 16400 & done; wait",
        );
    });
}

#[test]
fn ngircd_replays_a_channel() {
    let program = installed("/usr/sbin/ngircd");
    let dir = scratch("ngircd-conf");
    let conf = dir.join("ngircd.conf");
    write(
        &conf,
        "[Global]\nName = irc.example.net\nInfo = test\nListen = 127.0.0.1\nPorts = 16401\nServerUID = root\nServerGID = root\n[Options]\nDNS = no\nIdent = no\nPAM = no\n",
    );
    let conf = conf.display().to_string();
    run(&[program, "-n", "-f", &conf], 16401, "ngircd", || {
        wait_for(16401);
        sh(
            "for c in a b c; do (printf 'NICK %s\\r\\nUSER %s 0 * :x\\r\\n' $c $c; sleep 0.3; printf 'JOIN #x\\r\\n'; for i in $(seq 40); do printf 'PRIVMSG #x :line %s\\r\\n' $i; done; sleep 1; printf 'TIME\\r\\nWHO #x\\r\\nQUIT\\r\\n') | timeout 8 nc -N 127.0.0.1 16401 & done; wait",
        );
    });
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn memcached_with_one_worker_replays() {
    let program = installed("/usr/bin/memcached");
    let argv = [program, "-u", "root", "-l", "127.0.0.1", "-p", "16402", "-t", "1", "-U", "0"];
    run(&argv, 16402, "memcached", || {
        wait_for(16402);
        sh(
            "for c in 1 2 3; do (for i in $(seq 100); do printf 'set k%s 0 0 5\\r\\nv%s\\r\\nget k%s\\r\\nincr n 1\\r\\nstats\\r\\n' $i 1234 $i; done; printf 'quit\\r\\n') | timeout 5 nc -N 127.0.0.1 16402 & done; wait",
        );
    });
}

#[test]
fn haproxy_replays_answers_of_its_own() {
    let program = installed("/usr/sbin/haproxy");
    let dir = scratch("haproxy-conf");
    let conf = dir.join("haproxy.cfg");
    write(
        &conf,
        "global\n  nbthread 1\n  maxconn 200\ndefaults\n  mode http\n  timeout client 5s\n  timeout connect 5s\n  timeout server 5s\nfrontend f\n  bind 127.0.0.1:16403\n  http-request return status 200 content-type text/plain lf-string \"%[date] %[src] hello\\n\"\n",
    );
    let conf = conf.display().to_string();
    run(&[program, "-db", "-f", &conf], 16403, "haproxy", || {
        wait_for(16403);
        sh("wrk -d1 -c4 -t1 http://127.0.0.1:16403/x; curl -s http://127.0.0.1:16403/y");
    });
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn dnsmasq_replays_names_over_tcp() {
    let program = installed("/usr/sbin/dnsmasq");
    let argv = [
        program,
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-resolv",
        "--no-hosts",
        "--port=16404",
        "--listen-address=127.0.0.1",
        "--bind-interfaces",
        "--user=root",
        "--address=/example.net/192.0.2.1",
        "--pid-file=",
        // A process for each connection is the default.
        "--no-daemon",
    ];
    run(&argv, 16404, "dnsmasq", || {
        wait_for(16404);
        let query = "\\000\\035\\002\\001\\001\\000\\000\\001\\000\\000\\000\\000\\000\\000\\007example\\003net\\000\\000\\001\\000\\001";
        sh(&format!(
            "for i in $(seq 20); do printf '{query}' | timeout 5 nc -N 127.0.0.1 16404; done"
        ));
    });
}

#[test]
fn tinyproxy_replays_its_error_pages() {
    let program = installed("/usr/bin/tinyproxy");
    let dir = scratch("tinyproxy-conf");
    let conf = dir.join("tinyproxy.conf");
    write(
        &conf,
        "Port 16405\nListen 127.0.0.1\nTimeout 5\nMaxClients 20\nUser root\nGroup root\nAllow 127.0.0.1\n",
    );
    let conf = conf.display().to_string();
    run(&[program, "-d", "-c", &conf], 16405, "tinyproxy", || {
        wait_for(16405);
        sh(
            "for i in 1 2 3 4 5 6; do curl -s -x http://127.0.0.1:16405 http://127.0.0.1:1/ -o /dev/null; done",
        );
    });
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn every_group_of_calls_replays() {
    let Some(program) = compiled("calls.c") else { return };
    let path = program.display().to_string();
    run(&[&path, "16406"], 16406, "calls", || {
        wait_for(16406);
        // A forked child has the server's own handlers, and says so by its status.
        sh(
            "for i in $(seq 20); do echo all | timeout 5 nc -N 127.0.0.1 16406 | grep -q '^children 0 .* 7 1280$' || exit 1; done",
        );
    });
    let _ = std::fs::remove_file(program);
}

/// A launcher becomes the server; what it read and ran before is in the log too.
#[test]
fn a_script_that_becomes_the_server_replays() {
    let dir = scratch("launcher");
    let script = dir.join("start");
    write(
        &script,
        "port=$(printf 164; echo 07)\nread -r name < /proc/sys/kernel/hostname\n\
         exec env -i LANG=C NAME=\"$name\" nice -n 1 \
         /usr/bin/redis-server --port \"$port\" --save '' --appendonly no\n",
    );
    let script = script.display().to_string();
    run(&["/bin/sh", &script], 16407, "launcher", || {
        wait_for(16407);
        sh("redis-benchmark -q -p 16407 -n 2000 -c 4 -t set,get,incr > /dev/null");
        sh("redis-cli -p 16407 info server | grep -q uptime");
    });
    let _ = std::fs::remove_dir_all(dir);
}

/// Every form of exec, one after the other, ends in the same program.
#[test]
fn every_form_of_exec_keeps_the_log() {
    let Some(program) = compiled("becomes.c") else { return };
    let path = program.display().to_string();
    for form in ["execl", "execle", "execlp", "execv", "execvp", "execvpe", "fexecve", "syscall"] {
        run(&[&path, form, "16408", "a", "b", "c", "d", "e", "f"], 16408, form, || {
            wait_for(16408);
            sh(
                "for i in $(seq 30); do timeout 5 nc -N 127.0.0.1 16408 < /dev/null | grep -qx 'f e d c b a: kept' || exit 1; done",
            );
        });
    }
    let _ = std::fs::remove_file(program);
}

/// With a socket open the next program could not know what it has.
#[test]
fn a_server_that_replaces_itself_while_it_serves_is_reported() {
    let Some(program) = compiled("becomes.c") else { return };
    let path = program.display().to_string();
    let o = observe(&[&path, "serving", "16409", "x"], 16409, 0, "serving", || {
        wait_for(16409);
        sh("timeout 5 nc -N 127.0.0.1 16409 < /dev/null | grep -qx 'x: kept'");
    });
    assert_eq!(o.primary.0, mode::BROKEN, "{}", o.said);
    assert!(o.primary.1.contains("replaced itself"), "{}", o.primary.1);
    let _ = std::fs::remove_file(program);
}
