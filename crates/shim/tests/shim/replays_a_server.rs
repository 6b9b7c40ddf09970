//! The shim alone: a server is recorded under load with every event confirmed
//! at once, then a second copy is fed the log. It must consume all of it
//! without a difference in any byte written.

use crate::harness::{run, scratch, sh, wait_for, write};

#[test]
fn redis_replays_a_benchmark() {
    let argv = [
        "/usr/bin/redis-server",
        "--save",
        "",
        "--appendonly",
        "no",
        "--port",
        "16379",
        "--bind",
        "127.0.0.1",
    ];
    run(&argv, 16379, "redis", || {
        wait_for(16379);
        sh(
            "redis-benchmark -p 16379 -n 5000 -c 20 -q; redis-benchmark -p 16379 -n 20000 -P 16 -t set,get,incr -q; redis-cli -p 16379 info; redis-cli -p 16379 flushall async",
        );
    });
}

#[test]
fn nginx_replays_files_of_all_sizes() {
    let dir = scratch("nginx-conf");
    let root = dir.display();
    write(
        &dir.join("nginx.conf"),
        &format!(
            "daemon off; master_process off; worker_processes 1; pid nginx.pid; error_log error.log;\n\
             events {{ worker_connections 512; }}\n\
             http {{ access_log access.log; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3;\n\
             uwsgi_temp_path t4; scgi_temp_path t5; sendfile on;\n\
             server {{ listen 127.0.0.1:16380; root {root}; }} }}\n"
        ),
    );
    let conf = dir.join("nginx.conf").display().to_string();
    // A prefix of "." is each member's own directory.
    let argv = ["/usr/sbin/nginx", "-p", ".", "-c", &conf];
    run(&argv, 16380, "nginx", || {
        wait_for(16380);
        sh(
            "wrk -d1 -c8 -t1 http://127.0.0.1:16380/1k.bin; wrk -d1 -c4 -t1 http://127.0.0.1:16380/256k.bin; curl -s http://127.0.0.1:16380/none",
        );
    });
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn lighttpd_replays_files() {
    let dir = scratch("lighttpd-conf");
    let conf = dir.join("l.conf");
    write(
        &conf,
        &format!(
            "server.document-root = \"{}\"\nserver.port = 16381\nserver.bind = \"127.0.0.1\"\n",
            dir.display()
        ),
    );
    let conf = conf.display().to_string();
    run(&["/usr/sbin/lighttpd", "-D", "-f", &conf], 16381, "lighttpd", || {
        wait_for(16381);
        sh(
            "wrk -d1 -c8 -t1 http://127.0.0.1:16381/1k.bin; wrk -d1 -c4 -t1 http://127.0.0.1:16381/256k.bin",
        );
    });
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn mosquitto_replays_publishing() {
    let dir = scratch("mosquitto-conf");
    let conf = dir.join("m.conf");
    write(&conf, "listener 16382 127.0.0.1\nallow_anonymous true\npersistence false\nuser root\n");
    let conf = conf.display().to_string();
    run(&["/usr/sbin/mosquitto", "-c", &conf], 16382, "mosquitto", || {
        wait_for(16382);
        sh(
            "mosquitto_sub -p 16382 -t a -q 2 -C 300 > /dev/null & sleep 0.3; seq 300 | mosquitto_pub -p 16382 -t a -q 2 -l; wait",
        );
    });
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn a_python_event_loop_replays() {
    let dir = scratch("python-conf");
    let program = dir.join("echo.py");
    write(
        &program,
        "import asyncio, time, random\n\
         async def serve(r, w):\n\
         \x20   while line := await r.readline():\n\
         \x20       w.write(b'%f %f ' % (time.time(), random.random()) + line)\n\
         \x20       await w.drain()\n\
         \x20   w.close()\n\
         async def main():\n\
         \x20   s = await asyncio.start_server(serve, '127.0.0.1', 16383)\n\
         \x20   await s.serve_forever()\n\
         asyncio.run(main())\n",
    );
    let program = program.display().to_string();
    run(&["/usr/bin/python3", "-S", &program], 16383, "python", || {
        wait_for(16383);
        sh("for i in 1 2 3 4; do seq 500 | timeout 5 nc -q1 127.0.0.1 16383 & done; wait");
    });
    let _ = std::fs::remove_dir_all(dir);
}
