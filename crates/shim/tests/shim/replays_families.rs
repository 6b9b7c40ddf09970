//! A server of several processes is in one log: its copy has the same processes, which do
//! the same, and go on as the server.

use crate::harness::{
    ask, compiled, eventually, installed, run_and_promote_family, scratch, sh, wait_for, write,
};

const PORT: u16 = 16_380;
const NGINX_PORT: u16 = PORT + 1;
const GUNICORN_PORT: u16 = PORT + 2;

/// What it answers hangs on the worker's past, on randomness, and on numbers of processes.
const APPLICATION: &str = "
import os, random, time
served = 0
def application(environment, start):
    global served
    served += 1
    text = f'{served} {os.getpid()} {os.getppid()} {random.random()} {time.time()}\\n'
    start('200 OK', [('Content-Type', 'text/plain')])
    return [text.encode()]
";

fn ask_all() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..5 {
                    assert_eq!(ask(PORT, "nnnpn").len(), 5);
                }
            });
        }
    });
    // The client's connection goes over to a child of the worker.
    let lines = ask(PORT, "nfn");
    assert!(lines.len() == 3 && lines[1].starts_with("child"), "{lines:?}");
}

/// A worker ends, in the middle of a client's questions.
fn lose_a_worker(question: char) {
    let lines = ask(PORT, &format!("n{question}n"));
    assert_eq!(lines.len(), 2, "{lines:?}");
    eventually("another one serves", || ask(PORT, "nn").len() == 2);
}

#[test]
fn workers_share_a_listener_a_file_and_their_parent() {
    let Some(program) = compiled("family.c") else { return };
    let path = program.display().to_string();
    let load = || {
        wait_for(PORT);
        ask_all();
        lose_a_worker('k');
        lose_a_worker('x');
        ask_all();
    };
    run_and_promote_family(&[&path, &PORT.to_string()], PORT, "family", load, || {
        ask_all();
        lose_a_worker('k');
        lose_a_worker('x');
        ask_all();
    });
    let _ = std::fs::remove_file(program);
}

#[test]
fn nginx_with_workers_is_followed() {
    let program = installed("/usr/sbin/nginx");
    let dir = scratch("nginx-family");
    let conf = dir.join("nginx.conf");
    let own = dir.display();
    write(
        &conf,
        &format!(
            "daemon off;\nworker_processes 2;\nuser root;\npid {own}/pid;\nerror_log stderr;\n\
             events {{ worker_connections 64; }}\n\
             http {{ access_log off; client_body_temp_path {own}/b; proxy_temp_path {own}/p;\n\
             fastcgi_temp_path {own}/f; uwsgi_temp_path {own}/u; scgi_temp_path {own}/s;\n\
             server {{ listen 127.0.0.1:{NGINX_PORT}; root {own}; }} }}\n"
        ),
    );
    let conf = conf.display().to_string();
    let fetch = || {
        sh(&format!(
            "for c in 1 2 3 4; do (for i in $(seq 20); do curl -sf -m 20 http://127.0.0.1:{NGINX_PORT}/1k.bin \
             http://127.0.0.1:{NGINX_PORT}/256k.bin | cmp - {own}/both.bin || exit 1; done) & \
             all=\"$all $!\"; done; for c in $all; do wait $c || exit 1; done"
        ));
    };
    sh(&format!("cat {own}/1k.bin {own}/256k.bin >{own}/both.bin"));
    let load = || {
        wait_for(NGINX_PORT);
        fetch();
    };
    run_and_promote_family(&[program, "-c", &conf], NGINX_PORT, "nginx-family", load, fetch);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn gunicorn_with_workers_is_followed() {
    let program = installed("/usr/bin/gunicorn");
    let dir = scratch("gunicorn-family");
    write(&dir.join("answers.py"), APPLICATION);
    let (at, own) = (format!("127.0.0.1:{GUNICORN_PORT}"), dir.display().to_string());
    let argv =
        [program, "-w", "2", "-b", &at, "--chdir", &own, "--no-sendfile", "answers:application"];
    let fetch = || {
        sh(&format!(
            "for c in 1 2 3; do (for i in $(seq 20); do curl -sf -m 20 http://{at}/ || exit 1; done) & \
             all=\"$all $!\"; done; for c in $all; do wait $c || exit 1; done"
        ));
    };
    let load = || {
        wait_for(GUNICORN_PORT);
        fetch();
    };
    run_and_promote_family(&argv, GUNICORN_PORT, "gunicorn-family", load, fetch);
    let _ = std::fs::remove_dir_all(dir);
}
