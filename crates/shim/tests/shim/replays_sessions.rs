//! Debian's servers that fork for each client, or become themselves anew: the copy has the
//! same processes, which do the same, and go on as the server.

use crate::harness::{
    installed, run_and_promote_family, run_and_promote_family_anew, scratch, sh, wait_for, write,
};
use std::path::Path;

const VSFTPD_PORT: u16 = 16_400;
const DROPBEAR_PORT: u16 = 16_401;
const HAPROXY_PORT: u16 = 16_402;
const SMBD_PORT: u16 = 16_403;

/// Runs `one` for several clients at once, each with its number `$c`, some times.
fn crowd(one: &str) {
    sh(&format!(
        "for c in 1 2 3; do (for i in 1 2 3; do {one} || exit 1; done) & all=\"$all $!\"; done; \
         for c in $all; do wait $c || exit 1; done"
    ));
}

#[test]
fn vsftpd_is_followed() {
    let program = installed("/usr/sbin/vsftpd");
    let dir = scratch("vsftpd");
    let own = dir.display();
    let conf = dir.join("vsftpd.conf");
    sh(&format!(
        "mkdir -p {own}/empty {own}/www/up; cp {own}/*.bin {own}/www; chmod 777 {own}/www/up"
    ));
    write(
        &conf,
        &format!(
            "listen=YES\nlisten_address=127.0.0.1\nlisten_port={VSFTPD_PORT}\nbackground=NO\n\
             anonymous_enable=YES\nlocal_enable=NO\nwrite_enable=YES\nanon_upload_enable=YES\n\
             anon_umask=022\nanon_root={own}/www\nsecure_chroot_dir={own}/empty\nxferlog_enable=NO\n"
        ),
    );
    let conf = conf.display().to_string();
    let at = format!("ftp://127.0.0.1:{VSFTPD_PORT}");
    let fetch = || {
        crowd(&format!(
            "curl -sf -m 20 {at}/256k.bin | cmp -s - {own}/256k.bin && \
             curl -sf -m 20 -T {own}/256k.bin {at}/up/$c-$i-$$.bin"
        ));
        // The other member takes them anew.
        sh(&format!(
            "for f in {own}/www/up/*; do cmp $f {own}/256k.bin || exit 1; done; rm {own}/www/up/*"
        ));
    };
    let load = || {
        wait_for(VSFTPD_PORT);
        fetch();
    };
    run_and_promote_family(&[program, &conf], VSFTPD_PORT, "vsftpd", load, fetch);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn dropbear_is_followed() {
    let program = installed("/usr/sbin/dropbear");
    let dir = scratch("dropbear");
    let own = dir.display();
    sh(&format!("dropbearkey -t ed25519 -f {own}/host.key"));
    let (key, at) = (format!("{own}/host.key"), format!("127.0.0.1:{DROPBEAR_PORT}"));
    let pid = format!("{own}/dropbear.pid");
    let argv = [program, "-F", "-E", "-r", &key, "-P", &pid, "-p", &at];
    // Who may not log in has seen the server's key, by a process of its own.
    let look = || {
        crowd(&format!(
            "timeout 20 ssh -F /dev/null -o BatchMode=yes -o StrictHostKeyChecking=no \
             -o UserKnownHostsFile={own}/known-$c -o IdentityAgent=none -i /dev/null \
             -p {DROPBEAR_PORT} nobody@127.0.0.1 true; grep -q ed25519 {own}/known-$c && rm {own}/known-$c"
        ));
    };
    let load = || {
        wait_for(DROPBEAR_PORT);
        look();
    };
    run_and_promote_family(&argv, DROPBEAR_PORT, "dropbear", load, look);
    let _ = std::fs::remove_dir_all(dir);
}

#[test]
fn a_master_of_haproxy_becomes_itself_anew() {
    let program = installed("/usr/sbin/haproxy");
    let dir = scratch("haproxy-master");
    let conf = dir.join("haproxy.cfg");
    write(
        &conf,
        &format!(
            "global\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 5s\n  timeout client 60s\n  \
             timeout server 60s\nfrontend f\n  bind 127.0.0.1:{HAPROXY_PORT}\n  http-request return \
             status 200 content-type text/plain lf-string \"%[src_port] %[date] %[uuid()]\"\n"
        ),
    );
    let conf = conf.display().to_string();
    let ask = || {
        crowd(&format!(
            "curl -sf -m 20 http://127.0.0.1:{HAPROXY_PORT}/ http://127.0.0.1:{HAPROXY_PORT}/"
        ))
    };
    let load = || {
        wait_for(HAPROXY_PORT);
        ask();
    };
    run_and_promote_family(
        &[program, "-W", "-f", &conf],
        HAPROXY_PORT,
        "haproxy-master",
        load,
        ask,
    );
    let _ = std::fs::remove_dir_all(dir);
}

/// Samba is large: where it is not installed, the laboratory's table tells of it.
#[test]
fn smbd_is_followed() {
    let program = "/usr/sbin/smbd";
    if !Path::new(program).is_file() || !Path::new("/usr/bin/smbclient").is_file() {
        return;
    }
    let dir = scratch("smbd");
    let own = dir.display();
    write(
        &dir.join("smb.conf"),
        &format!(
            "[global]\nsmb ports = {SMBD_PORT}\ninterfaces = lo\nbind interfaces only = yes\n\
             map to guest = Bad User\nguest account = nobody\nserver role = standalone server\n\
             disable netbios = yes\nload printers = no\nprinting = bsd\nprintcap name = /dev/null\n\
             netbios name = test\nlog level = 1\nlog file = {own}/own/smbd.log\n\
             private dir = {own}/own/private\nlock directory = {own}/own/lock\n\
             state directory = {own}/own/state\ncache directory = {own}/own/cache\n\
             pid directory = {own}/own/pid\nncalrpc dir = {own}/own/rpc\n\
             [share]\npath = {own}/own/share\nguest ok = yes\nread only = no\nforce user = root\n"
        ),
    );
    // Each member begins with nothing.
    let anew = || {
        sh(&format!(
            "cd {own}; rm -rf own; mkdir own; cd own; mkdir private lock state cache pid rpc share"
        ));
    };
    anew();
    let conf = dir.join("smb.conf").display().to_string();
    let argv = [program, "--foreground", "--no-process-group", "-s", &conf];
    let work = || {
        crowd(&format!(
            "timeout 40 smbclient -N -p {SMBD_PORT} //127.0.0.1/share -c \"put {own}/256k.bin up-$c-$i; ls; \
             get up-$c-$i {own}/down-$c; mkdir d-$c-$i; rename up-$c-$i d-$c-$i/there; put {own}/1k.bin all\" \
             && cmp {own}/down-$c {own}/256k.bin"
        ));
    };
    let load = || {
        wait_for(SMBD_PORT);
        work();
        sh(&format!("cp -a {own}/own/share {own}/of-primary"));
    };
    let after = || {
        sh(&format!("diff -r {own}/own/share {own}/of-primary && rm -r {own}/own/share/*"));
        work();
    };
    run_and_promote_family_anew(&argv, SMBD_PORT, "smbd", load, anew, after);
    let _ = std::fs::remove_dir_all(dir);
}
