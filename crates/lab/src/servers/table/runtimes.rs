//! Servers written in languages with a runtime of their own.

use super::super::row::{At, Carrier, Client, Lasts, Place, Row, Step, Talk};
use super::{V4, V6, curl, documents, http, letters, words};
use anyhow::Result;

/// Bytes of a line that is echoed.
const LINE_BYTES: u64 = 700;

pub fn rows() -> Vec<Row> {
    vec![
        Row {
            port: 8080,
            prepare: documents,
            arguments: |place| {
                words(place, "-m http.server 8080 --bind :: --protocol HTTP/1.1 --directory {}/www")
            },
            talk: Talk::new(Carrier::Tcp, http),
            clients: curl,
            ..Row::new("python-http", &["python3-minimal", "curl"], "/usr/bin/python3")
        },
        Row {
            port: 7000,
            prepare: |place| place.write("echo.py", ASYNCIO),
            arguments: |place| words(place, &format!("{{}}/echo.py {V4} {V6}")),
            talk: Talk::new(Carrier::Tcp, echo),
            clients: echo_client,
            ..Row::new("python-asyncio", &["python3-minimal", "netcat-openbsd"], "/usr/bin/python3")
        },
        Row {
            runs: "/usr/bin/python3",
            port: 8080,
            has_ipv6: false,
            prepare: |place| {
                documents(place)?;
                place.write("app.py", ASGI)
            },
            arguments: |place| words(place, &format!("app:app --host {V4} --port 8080")),
            talk: Talk::new(Carrier::Tcp, http),
            clients: curl,
            ..Row::new("uvicorn", &["uvicorn", "curl"], "/usr/bin/uvicorn")
        },
        Row {
            port: 8080,
            has_ipv6: false,
            prepare: documents,
            arguments: |place| words(place, &format!("-S {V4}:8080 -t {{}}/www")),
            // It ends every connection.
            talk: Talk { lasts: Lasts::Turns(1), ..Talk::new(Carrier::Tcp, http) },
            clients: curl,
            runs: "/usr/bin/php8.2",
            ..Row::new("php", &["php-cli", "curl"], "/usr/bin/php")
        },
        node("node-one-thread", "`--single-threaded --v8-pool-size=0`", |place| {
            words(place, "--single-threaded --v8-pool-size=0 {}/server.js")
        }),
        node("node", "", |place| words(place, "{}/server.js")),
        // The hosts of the laboratory share /tmp, where the JVM keeps a file for each of its pids.
        java("java", "", |place| words(place, "-XX:-UsePerfData -cp {} Echo")),
        java("java-interpreter", "`-Xint -XX:+UseSerialGC`", |place| {
            words(place, "-XX:-UsePerfData -Xint -XX:+UseSerialGC -cp {} Echo")
        }),
    ]
}

/// Says a line and hears it.
fn echo(session: u64, turn: u64) -> Step {
    let line = letters(session, turn, LINE_BYTES) + "\n";
    Step::exact(line.clone(), line)
}

fn echo_client(at: &At) -> Vec<Client> {
    vec![Client::shell(at, "echo value | nc -N {host} {port}", "value\n")]
}

/// Echoes lines, and keeps its peers in a set, whose order hangs on addresses.
const ASYNCIO: &str = "
import asyncio, sys

peers = set()

async def serve(reader, writer):
    peers.add(writer)
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    peers.discard(writer)
    writer.close()

async def main():
    server = await asyncio.start_server(serve, sys.argv[1:], 7000)
    await server.serve_forever()

asyncio.run(main())
";

const ASGI: &str = "
async def app(scope, receive, send):
    if scope['type'] != 'http':
        return
    with open('www' + scope['path'], 'rb') as file:
        body = file.read()
    size = str(len(body)).encode()
    await send({'type': 'http.response.start', 'status': 200, 'headers': [(b'content-length', size)]})
    await send({'type': 'http.response.body', 'body': body})
";

fn node(
    name: &'static str,
    setting: &'static str,
    arguments: fn(&Place<'_>) -> Vec<String>,
) -> Row {
    Row {
        setting,
        port: 8080,
        prepare: |place| {
            documents(place)?;
            place.write("server.js", NODE)
        },
        arguments,
        talk: Talk::new(Carrier::Tcp, http),
        clients: curl,
        ..Row::new(name, &["nodejs", "curl"], "/usr/bin/node")
    }
}

const NODE: &str = "
const fs = require('fs');
const server = require('http').createServer((ask, answer) => {
  const body = fs.readFileSync('www' + ask.url);
  answer.writeHead(200, { 'Content-Length': body.length });
  answer.end(body);
});
server.keepAliveTimeout = 60000;
server.listen(8080, '::');
";

fn java(
    name: &'static str,
    setting: &'static str,
    arguments: fn(&Place<'_>) -> Vec<String>,
) -> Row {
    Row {
        setting,
        port: 7000,
        prepare: compile,
        arguments,
        talk: Talk::new(Carrier::Tcp, echo),
        clients: echo_client,
        ..Row::new(name, &["openjdk-17-jdk-headless", "netcat-openbsd"], JAVA)
    }
}

const JAVA: &str = "/usr/lib/jvm/java-17-openjdk-amd64/bin/java";

fn compile(place: &Place<'_>) -> Result<()> {
    place.write("Echo.java", NIO)?;
    place.run("javac -d {} {}/Echo.java")
}

/// A selector, and what it reads goes back.
const NIO: &str = "
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.channels.*;

public class Echo {
    public static void main(String[] words) throws Exception {
        Selector selector = Selector.open();
        ServerSocketChannel server = ServerSocketChannel.open();
        server.bind(new InetSocketAddress(\"::\", 7000));
        server.configureBlocking(false);
        server.register(selector, SelectionKey.OP_ACCEPT);
        ByteBuffer bytes = ByteBuffer.allocateDirect(65536);
        while (true) {
            selector.select();
            for (SelectionKey key : selector.selectedKeys()) {
                if (key.isAcceptable()) {
                    SocketChannel client = server.accept();
                    client.configureBlocking(false);
                    client.register(selector, SelectionKey.OP_READ);
                } else {
                    SocketChannel client = (SocketChannel) key.channel();
                    bytes.clear();
                    if (client.read(bytes) < 0) {
                        client.close();
                        continue;
                    }
                    bytes.flip();
                    while (bytes.hasRemaining()) {
                        client.write(bytes);
                    }
                }
            }
            selector.selectedKeys().clear();
        }
    }
}
";
