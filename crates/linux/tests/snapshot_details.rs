//! What a copy has of its original besides memory, threads and files: where new memory lies, what
//! sockets and signals are set to; and what is compared before a host is changed. Needs root.

mod snapshot_world;

use holdfast_linux::snapshot::Preparation;
use holdfast_linux::snapshot::quiet::Bare;
use holdfast_linux::snapshot::restore::{Loading, restore};
use holdfast_wire::snapshot::{Holds, Limits, Reader, Writer};
use snapshot_world::{Elsewhere, KEY, Server, options};
use std::path::PathBuf;

fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("hf{name}{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// An image as another kernel would have made it: with another vDSO.
fn of_another_kernel(image: &[u8]) -> Vec<u8> {
    let mut reader = Reader::begin(image, &KEY, Limits::default()).unwrap();
    let mut description = reader.description().clone();
    description.members[0].process.vdso[100] ^= 1;
    let mut writer = Writer::begin(Vec::new(), &KEY, Limits::default(), &description).unwrap();
    loop {
        match reader.chunk().unwrap() {
            (Holds::End, _) => return writer.end().unwrap(),
            (holds, bytes) => writer.chunk(holds, bytes).unwrap(),
        }
    }
}

#[test]
fn a_host_with_another_kernel_keeps_its_state_folders() {
    let folder = scratch("kernel");
    let file = folder.join("state");
    std::fs::write(&file, "the primary's").unwrap();
    let server = Server::start("sleep 600", "/dev/null");
    let options = || {
        let mut options = options();
        options.state_dirs.push(folder.clone());
        options
    };
    let image = {
        let options = options();
        let mut preparation = Preparation::begin(&[server.pid()], &options).unwrap();
        preparation.state_round().unwrap();
        preparation.freeze(&mut Bare).unwrap().write(Vec::new(), &options).unwrap()
    };
    std::fs::write(&file, "the joiner's").unwrap();
    let (limits, state_dirs) = (Limits::default(), vec![folder.clone()]);
    let loading =
        Loading { key: KEY, limits, state_dirs, keeps_old: false, dies_with_parent: true };
    let refused = restore(&of_another_kernel(&image)[..], &loading, &mut Elsewhere).err().unwrap();
    assert!(refused.to_string().contains("its vDSO differs"), "{refused}");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "the joiner's");
    restore(&image[..], &loading, &mut Elsewhere).unwrap();
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "the primary's");
    std::fs::remove_dir_all(folder).unwrap();
}
