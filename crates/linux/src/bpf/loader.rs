//! Loads one eBPF object, pins its maps and programs, and attaches the programs as netlink tc
//! filters, or to a control group for as long as the daemon lives. Filters are replaced in place:
//! at every moment either the old or the new program is attached.

use super::error::BpfError;
use super::layout::{GROUP_NAME_BYTES, SERVICES_MAX, ServiceKey, mapped};
use super::owner::{self, GROUP_NAME, Owner};
use super::{kept, net, qdisc};
use aya::maps::{Array, HashMap, Map, MapData, PerCpuArray};
use aya::programs::links::Link;
use aya::programs::tc::{NlOptions, SchedClassifierLink, TcAttachOptions, TcHandle};
use aya::programs::{CgroupAttachMode, CgroupSockAddr, SchedClassifier, TcAttachType, tc};
use aya::{Ebpf, EbpfLoader};
use std::ffi::CString;
use std::fmt;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Handle of the tc filters: each is the only one of its priority, so any handle will do.
const HANDLE: TcHandle = TcHandle::new(0, 1);

/// One object of `bpf/`.
pub(crate) struct Object {
    /// Name of its directory of pins.
    pub name: &'static str,
    pub bytes: &'static [u8],
    pub maps: &'static [&'static str],
    /// Names of its counters, in the order of its counter enum.
    pub counters: &'static [&'static str],
    /// Priority of its tc filters; distinct, because a host may need two
    /// objects on one interface.
    pub priority: u16,
}

impl Object {
    /// The directory of this object's pins under `pin_dir`.
    pub(crate) fn directory(&self, pin_dir: &Path) -> PathBuf {
        pin_dir.join(self.name)
    }

    /// Loads the object, using maps that are already pinned. `sizes` overrides
    /// numbers of entries.
    pub(crate) fn load(
        &'static self,
        pin_dir: &Path,
        sizes: &[(&'static str, u32)],
    ) -> Result<Loaded, BpfError> {
        let directory = self.directory(pin_dir);
        let made = |source| BpfError::PinDir { path: directory.clone(), source };
        ensure_bpffs(pin_dir)?;
        std::fs::create_dir_all(&directory).map_err(made)?;
        let mut loader = loader(sizes);
        for map in self.maps {
            loader.map_pin_path(map, directory.join(map));
        }
        self.load_by(&mut loader, directory)
    }

    /// Loads the object so that it ends with its owner: nothing is pinned.
    pub(crate) fn load_unpinned(
        &'static self,
        sizes: &[(&'static str, u32)],
    ) -> Result<Loaded, BpfError> {
        self.load_by(&mut loader(sizes), PathBuf::new())
    }

    fn load_by(
        &'static self,
        loader: &mut EbpfLoader<'_>,
        directory: PathBuf,
    ) -> Result<Loaded, BpfError> {
        let refused = |error| BpfError::Load { object: self.name, source: Box::new(error) };
        let ebpf = loader.load(self.bytes).map_err(refused)?;
        Ok(Loaded { ebpf, object: self, directory, owner: Owner::default() })
    }

    /// A map that an earlier daemon has pinned.
    pub(crate) fn pinned(&self, pin_dir: &Path, map: &'static str) -> Result<MapData, BpfError> {
        MapData::from_pin(self.directory(pin_dir).join(map)).map_err(BpfError::map(map))
    }

    /// The counters that an earlier daemon has pinned.
    pub(crate) fn pinned_counters(&self, pin_dir: &Path) -> Result<Counters, BpfError> {
        let map = Map::PerCpuArray(self.pinned(pin_dir, "counters")?);
        let map = PerCpuArray::try_from(map).map_err(BpfError::map("counters"))?;
        Ok(Counters { map, names: self.counters })
    }

    /// Removes pins, so that the next [`Object::load`] starts with empty maps.
    pub(crate) fn unpin(&self, pin_dir: &Path) -> Result<(), BpfError> {
        let directory = self.directory(pin_dir);
        kept::forget(&directory);
        match std::fs::remove_dir_all(&directory) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(BpfError::PinDir { path: directory, source })
            }
            _ => Ok(()),
        }
    }

    /// Removes this object's filters and pins; what is missing is no error. Returns the filters
    /// that were there. Filters of another group than `own` (`None`: than the pinned object's)
    /// stay.
    pub(super) fn detach_all(
        &self,
        interfaces: &[&str],
        directions: &[TcAttachType],
        own: Option<Owner>,
        pin_dir: &Path,
    ) -> Result<Vec<Detached>, BpfError> {
        let own = own.unwrap_or_else(|| self.pinned_owner(pin_dir));
        let places = interfaces.iter().flat_map(|i| directions.iter().map(move |d| (*i, *d)));
        let mut detached = Vec::new();
        for (interface, direction) in places {
            let found = self.filter(interface, direction)?;
            let is_own = |it: &qdisc::Filter| self.other_group(it, &own, pin_dir).is_none();
            if let Some(found) = found.filter(is_own) {
                detached.push(detach(found, interface, direction)?);
            }
        }
        self.unpin(pin_dir)?;
        Ok(detached)
    }

    /// Removes this object's filter if its program is the pinned one.
    pub(crate) fn detach_pinned(
        &self,
        program: &str,
        interface: &str,
        direction: TcAttachType,
        pin_dir: &Path,
    ) -> Result<(), BpfError> {
        let pinned = SchedClassifier::from_pin(self.directory(pin_dir).join(program));
        let Ok(own) = pinned.and_then(|it| it.info()) else { return Ok(()) };
        match self.filter(interface, direction)? {
            Some(it) if it.program == Some(own.id()) => detach(it, interface, direction).map(drop),
            _ => Ok(()),
        }
    }

    /// The filter of this object at an interface, if both are there.
    pub(super) fn filter(
        &self,
        interface: &str,
        direction: TcAttachType,
    ) -> Result<Option<qdisc::Filter>, BpfError> {
        let Ok(index) = net::ifindex(interface) else { return Ok(None) };
        let filters = qdisc::filters(index, direction)
            .map_err(|source| BpfError::Filters { interface: interface.into(), source })?;
        let own = |f: &qdisc::Filter| f.priority == self.priority && f.name.starts_with(self.name);
        Ok(filters.into_iter().find(own))
    }

    /// Attaches pinned programs again whose filters somebody has removed (alone or with their
    /// interface) or has replaced by another program. Returns which they were.
    pub(crate) fn mend(
        &self,
        pin_dir: &Path,
        places: &[(&'static str, &str, TcAttachType)],
    ) -> Result<Vec<Detached>, BpfError> {
        let mut missing = Vec::new();
        for &(program, interface, direction) in places {
            let found = self.filter(interface, direction)?;
            let pinned = SchedClassifier::from_pin(self.directory(pin_dir).join(program));
            let own = pinned.as_ref().ok().and_then(|it| it.info().ok()).map(|info| info.id());
            // Without the pin the filter's program cannot be compared, nor replaced by a better
            // one: then it stays.
            let is_other = |(it, own): (u32, u32)| it != own;
            let stays = |it: &qdisc::Filter| !it.program.zip(own).is_some_and(is_other);
            if found.as_ref().is_some_and(stays) {
                continue;
            }
            self.refuse_others(&[interface], &[direction], &self.pinned_owner(pin_dir), pin_dir)?;
            net::ifindex(interface)?;
            qdisc::ensure(interface, pin_dir);
            let failed = |source| BpfError::Attach {
                program,
                interface: interface.into(),
                source: Box::new(source),
            };
            pinned
                .and_then(|mut own| attach_one(&mut own, interface, direction, self.priority))
                .map_err(failed)?;
            let replaced = found.is_some();
            let one = Detached::new(program.to_owned(), interface, direction);
            missing.push(Detached { replaced, ..one });
        }
        Ok(missing)
    }

    /// Like [`Object::mend`], at each place by itself: an absent interface harms no other one.
    pub(crate) fn mend_each<'p>(
        &self,
        pin_dir: &Path,
        places: impl IntoIterator<Item = (&'static str, &'p str, TcAttachType)>,
    ) -> Mended {
        let mut mended = Mended::default();
        for place in places {
            match self.mend(pin_dir, &[place]) {
                Ok(missing) => mended.missing.extend(missing),
                Err(error) => mended.failed = Some(error),
            }
        }
        mended
    }
}

/// What was found of attached programs, and done for them.
#[derive(Debug, Default)]
pub struct Mended {
    /// Programs that were missing, and have been attached again.
    pub missing: Vec<Detached>,
    /// Whether an interface that the programs send to was replaced or removed.
    pub moved: bool,
    /// The last failure, if something could not be attached or written again.
    pub failed: Option<BpfError>,
}

/// A tc filter that was removed, by us or by others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detached {
    pub program: String,
    pub interface: String,
    pub direction: &'static str,
    /// Whether another program had taken its place.
    pub replaced: bool,
}

impl Detached {
    fn new(program: String, interface: &str, direction: TcAttachType) -> Self {
        let way = if matches!(direction, TcAttachType::Egress) { "egress" } else { "ingress" };
        Self { program, interface: interface.to_owned(), direction: way, replaced: false }
    }

    /// What had happened to it, as a text.
    #[must_use]
    pub fn fate(&self) -> &'static str {
        if self.replaced { "had been replaced by another program" } else { "had been removed" }
    }
}

impl fmt::Display for Detached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {} ({})", self.program, self.interface, self.direction)
    }
}

/// Removes a filter that was found there.
pub(super) fn detach(
    found: qdisc::Filter,
    interface: &str,
    direction: TcAttachType,
) -> Result<Detached, BpfError> {
    let failed = |source: io::Error| BpfError::Filters { interface: interface.into(), source };
    let link = SchedClassifierLink::attached(interface, direction, found.priority, HANDLE, None);
    link.map_err(failed)?.detach().map_err(|error| failed(io::Error::other(error)))?;
    Ok(Detached::new(found.name, interface, direction))
}

/// Removes the qdiscs that were made for the programs of `pin_dir`, unless another filter is
/// attached there. Returns the names of their interfaces.
#[must_use]
pub fn remove_qdiscs(pin_dir: &Path) -> Vec<String> {
    let name = |index| crate::link::name_of(index).unwrap_or_else(|| format!("interface {index}"));
    qdisc::remove_made(pin_dir).into_iter().map(name).collect()
}

/// Whether a BPF file system is mounted at `pin_dir`, so that pins of an earlier daemon may be
/// there.
#[must_use]
pub fn has_pins(pin_dir: &Path) -> bool {
    file_system(pin_dir).is_ok_and(|kind| kind == libc::BPF_FS_MAGIC)
}

/// Removes the BPF file system that was mounted at `pin_dir` for the pins, and the
/// directory; true if one was there.
///
/// # Errors
/// [`BpfError::PinDir`] if it is in use.
pub fn remove_pin_dir(pin_dir: &Path) -> Result<bool, BpfError> {
    let failed = |source| BpfError::PinDir { path: pin_dir.into(), source };
    kept::forget(pin_dir);
    if !pin_dir.exists() {
        return Ok(false);
    }
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).map_err(failed);
    let parent = pin_dir.parent().unwrap_or(Path::new("/"));
    let mounted = file_system(pin_dir).map_err(failed)? == libc::BPF_FS_MAGIC
        && device(pin_dir)? != device(parent)?;
    if mounted {
        let path = CString::new(pin_dir.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
        // SAFETY: `path` is a NUL-terminated string that outlives the call.
        if unsafe { libc::umount2(path.as_ptr(), 0) } != 0 {
            return Err(failed(io::Error::last_os_error()));
        }
    }
    // The directory stays if it holds files of others.
    let _not_empty = std::fs::remove_dir(pin_dir);
    Ok(mounted)
}

fn loader(sizes: &[(&'static str, u32)]) -> EbpfLoader<'static> {
    let mut loader = EbpfLoader::new();
    // No program needs the kernel's types, and reading them takes 100 ms.
    loader.btf(None);
    for (map, entries) in sizes {
        loader.map_max_entries(map, *entries);
    }
    loader
}

/// An object loaded into the kernel.
pub(crate) struct Loaded {
    ebpf: Ebpf,
    object: &'static Object,
    /// Directory of its pins.
    directory: PathBuf,
    /// The group that its filters belong to.
    owner: Owner,
}

impl Loaded {
    /// Loads `program`, pins it, and attaches it to every interface.
    pub(crate) fn attach(
        &mut self,
        program: &'static str,
        interfaces: &[&str],
        direction: TcAttachType,
    ) -> Result<(), BpfError> {
        let refused = |source| BpfError::Program { program, source: Box::new(source) };
        let classifier: &mut SchedClassifier = match self.ebpf.program_mut(program) {
            Some(found) => found.try_into().map_err(refused)?,
            None => return Err(BpfError::MissingMap { map: program }),
        };
        let pin_dir = self.directory.parent().unwrap_or(&self.directory);
        self.object.refuse_others(interfaces, &[direction], &self.owner, pin_dir)?;
        classifier.load().map_err(refused)?;
        if matches!(self.owner, Owner::Group(_)) {
            // Opened by its pin, since the object itself is borrowed by the program.
            let name = MapData::from_pin(self.directory.join(GROUP_NAME));
            let name = name.map_err(BpfError::map(GROUP_NAME))?;
            let loaded = classifier.fd().map_err(refused)?;
            owner::bind(loaded.as_fd(), name.fd().as_fd())
                .map_err(|source| BpfError::Owner { program, source })?;
        }
        let path = self.directory.join(program);
        // The pin of an earlier run holds the program that is now replaced.
        let _absent = std::fs::remove_file(&path);
        classifier.pin(&path).map_err(|source| BpfError::Pin { path, source })?;
        kept::keep(&self.directory)?;
        for interface in interfaces {
            net::ifindex(interface)?;
            qdisc::ensure(interface, pin_dir);
            attach_one(classifier, interface, direction, self.object.priority).map_err(
                |source| BpfError::Attach {
                    program,
                    interface: (*interface).into(),
                    source: Box::new(source),
                },
            )?;
        }
        Ok(())
    }

    /// Loads and pins a program that nothing is attached to.
    pub(crate) fn pin_only(&mut self, program: &'static str) -> Result<SchedClassifier, BpfError> {
        self.attach(program, &[], TcAttachType::Ingress)?;
        let refused = |source| BpfError::Program { program, source: Box::new(source) };
        SchedClassifier::from_pin(self.directory.join(program)).map_err(refused)
    }

    /// Loads `program` and attaches it to a control group, beside other programs
    /// there, until this object is dropped.
    pub(crate) fn attach_to_cgroup(
        &mut self,
        program: &'static str,
        cgroup: BorrowedFd<'_>,
    ) -> Result<(), BpfError> {
        let refused = |source| BpfError::Program { program, source: Box::new(source) };
        let hook: &mut CgroupSockAddr = match self.ebpf.program_mut(program) {
            Some(found) => found.try_into().map_err(refused)?,
            None => return Err(BpfError::MissingMap { map: program }),
        };
        hook.load().map_err(refused)?;
        // A link is always one of several; the kernel refuses flags that say so.
        let attached = hook.attach(cgroup, CgroupAttachMode::Single);
        let failed = |source| BpfError::AttachToCgroup { program, source: Box::new(source) };
        attached.map(|_owned_by_the_object| ()).map_err(failed)
    }

    /// Takes a map out of the object, as the type of its kind. It must live until the programs
    /// are attached, because they refer to it by its descriptor.
    pub(crate) fn map<T: TryFrom<Map, Error = aya::maps::MapError>>(
        &mut self,
        map: &'static str,
    ) -> Result<T, BpfError> {
        let found = self.ebpf.take_map(map).ok_or(BpfError::MissingMap { map })?;
        T::try_from(found).map_err(BpfError::map(map))
    }

    /// Opens a pinned map a second time, for reading it in batches.
    pub(crate) fn pinned(&self, map: &'static str) -> Result<MapData, BpfError> {
        MapData::from_pin(self.directory.join(map)).map_err(BpfError::map(map))
    }

    /// Takes an array map out of the object as descriptor and description only.
    pub(crate) fn array_data(&mut self, map: &'static str) -> Result<MapData, BpfError> {
        match self.ebpf.take_map(map) {
            Some(Map::Array(data)) => Ok(data),
            _ => Err(BpfError::MissingMap { map }),
        }
    }

    /// Makes the maps of protected services hold exactly `services`.
    pub(crate) fn set_services(&mut self, services: &[(IpAddr, u16)]) -> Result<(), BpfError> {
        if services.is_empty() || services.len() > SERVICES_MAX {
            return Err(BpfError::Services(services.len()));
        }
        let keys: Vec<_> = services.iter().map(|(ip, port)| ServiceKey::new(*ip, *port)).collect();
        let addresses: Vec<_> = services.iter().map(|(ip, _)| mapped(*ip)).collect();
        self.replace_set("services", &keys)?;
        self.owner = Owner::Services(keys);
        self.replace_set("addresses", &addresses)
    }

    /// Sets the name of the group that programs attached from now on belong to.
    pub(crate) fn set_group(&mut self, name: &str) -> Result<(), BpfError> {
        let map = self.ebpf.map_mut(GROUP_NAME).ok_or(BpfError::MissingMap { map: GROUP_NAME })?;
        let mut map = Array::<&mut MapData, [u8; GROUP_NAME_BYTES]>::try_from(map)
            .map_err(BpfError::map(GROUP_NAME))?;
        map.set(0, owner::raw_name(name), 0).map_err(BpfError::map(GROUP_NAME))?;
        self.owner = Owner::Group(name.to_owned());
        Ok(())
    }

    /// Makes the map of protected addresses hold exactly `addresses`.
    pub(crate) fn set_addresses(&mut self, addresses: &[IpAddr]) -> Result<(), BpfError> {
        if addresses.is_empty() || addresses.len() > SERVICES_MAX {
            return Err(BpfError::Services(addresses.len()));
        }
        let addresses: Vec<_> = addresses.iter().map(|ip| mapped(*ip)).collect();
        self.replace_set("addresses", &addresses)
    }

    /// Replaces a set's content. The map stays in the object: programs not yet
    /// loaded refer to it.
    pub(crate) fn replace_set<K: aya::Pod + PartialEq>(
        &mut self,
        name: &'static str,
        wanted: &[K],
    ) -> Result<(), BpfError> {
        let map = self.ebpf.map_mut(name).ok_or(BpfError::MissingMap { map: name })?;
        let mut map =
            HashMap::<&mut MapData, K, u32>::try_from(map).map_err(BpfError::map(name))?;
        let present: Vec<K> = map.keys().filter_map(Result::ok).collect();
        for key in present.iter().filter(|key| !wanted.contains(key)) {
            map.remove(key).map_err(BpfError::map(name))?;
        }
        for key in wanted {
            map.insert(key, 1, 0).map_err(BpfError::map(name))?;
        }
        Ok(())
    }

    pub(crate) fn counters(&mut self) -> Result<Counters, BpfError> {
        Ok(Counters { map: self.map("counters")?, names: self.object.counters })
    }
}

/// Named counters, summed over the processors.
pub(crate) struct Counters {
    map: PerCpuArray<MapData, u64>,
    names: &'static [&'static str],
}

impl Counters {
    pub(crate) fn read(&self) -> Vec<(&'static str, u64)> {
        self.names.iter().enumerate().map(|(index, name)| (*name, self.sum(index))).collect()
    }

    /// A counter by its name.
    pub(crate) fn one(&self, name: &str) -> u64 {
        self.names.iter().position(|known| *known == name).map_or(0, |index| self.sum(index))
    }

    fn sum(&self, index: usize) -> u64 {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.map.get(&index, 0).map_or(0, |values| values.iter().sum())
    }
}

fn attach_one(
    classifier: &mut SchedClassifier,
    interface: &str,
    direction: TcAttachType,
    priority: u16,
) -> Result<(), aya::programs::ProgramError> {
    let replaced = SchedClassifierLink::attached(interface, direction, priority, HANDLE, None)
        .map_err(|error| tc::TcError::IoError(error).into())
        .and_then(|old| classifier.attach_to_link(old));
    let id = match replaced {
        Ok(id) => id,
        Err(_) => {
            let options = NlOptions { priority, handle: HANDLE, classid: None };
            let options = TcAttachOptions::Netlink(options);
            classifier.attach_with_options(interface, direction, options)?
        }
    };
    // Dropping the link would remove the filter, which must outlive the daemon.
    std::mem::forget(classifier.take_link(id)?);
    Ok(())
}

/// Mounts a BPF file system on `directory` unless it already lies in one.
pub(super) fn ensure_bpffs(directory: &Path) -> Result<(), BpfError> {
    let failed = |source| BpfError::Mount { path: directory.into(), source };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let path = CString::new(directory.as_os_str().as_bytes()).map_err(|e| failed(e.into()))?;
    if file_system(directory).map_err(failed)? == libc::BPF_FS_MAGIC {
        return Ok(());
    }
    let kind = c"bpf".as_ptr();
    // Without this mode every user could make folders and links there.
    let mode = c"mode=0700".as_ptr();
    // SAFETY: all strings are NUL-terminated and outlive the call.
    let status = unsafe { libc::mount(kind, path.as_ptr(), kind, 0, mode.cast()) };
    if status == 0 { Ok(()) } else { Err(failed(io::Error::last_os_error())) }
}

/// The type of the file system that a directory lies in.
fn file_system(directory: &Path) -> io::Result<i64> {
    let path = CString::new(directory.as_os_str().as_bytes())?;
    // SAFETY: an all-zero statfs is a valid value of that plain C structure.
    let mut stat: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: `path` is NUL-terminated and `stat` is a whole statfs.
    if unsafe { libc::statfs(path.as_ptr(), &raw mut stat) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(stat.f_type)
}
