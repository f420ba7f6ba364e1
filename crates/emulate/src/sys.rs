//! System calls, each with its error number.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::{io, mem, ptr};

/// A system call that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// What was attempted.
    pub what: &'static str,
    pub errno: i32,
}

impl Fault {
    pub fn last(what: &'static str) -> Self {
        Self { what, errno: io::Error::last_os_error().raw_os_error().unwrap_or(0) }
    }

    /// Returns the fault as one of `what`.
    pub fn of(self, what: &'static str) -> Self {
        Self { what, ..self }
    }

    /// Returns whether the process lacks a privilege.
    pub fn is_privilege(&self) -> bool {
        matches!(self.errno, libc::EPERM | libc::EACCES)
    }
}

fn check(what: &'static str, result: libc::c_int) -> Result<libc::c_int, Fault> {
    if result < 0 { Err(Fault::last(what)) } else { Ok(result) }
}

pub(crate) fn socket(domain: i32, kind: i32, protocol: i32) -> Result<OwnedFd, Fault> {
    // SAFETY: the call takes no pointers, and the caller owns the returned descriptor.
    let fd = check("socket", unsafe { libc::socket(domain, kind, protocol) })?;
    // SAFETY: as above.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

pub(crate) fn send(fd: &OwnedFd, bytes: &[u8]) -> Result<(), Fault> {
    // SAFETY: pointer and length are those of a slice.
    let sent = unsafe { libc::send(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
    if sent < 0 { Err(Fault::last("send")) } else { Ok(()) }
}

pub(crate) fn receive(fd: &OwnedFd, bytes: &mut [u8]) -> Result<usize, Fault> {
    // SAFETY: pointer and length are those of a slice.
    let received = unsafe { libc::recv(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    usize::try_from(received).map_err(|_| Fault::last("receive"))
}

/// Sets an option of a packet socket. `T` is an integer, or a structure of integers.
pub(crate) fn set_option<T: Copy>(fd: &OwnedFd, what: &'static str, option: i32, value: &T) -> Result<(), Fault> {
    set_level(fd, what, libc::SOL_PACKET, option, value)
}

/// Sets an option of any level.
pub(crate) fn set_level<T: Copy>(
    fd: &OwnedFd,
    what: &'static str,
    level: i32,
    option: i32,
    value: &T,
) -> Result<(), Fault> {
    let length = mem::size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and length are those of `value`.
    check(what, unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, ptr::from_ref(value).cast(), length) })?;
    Ok(())
}

/// Returns the numbers of packets and drops of a packet socket since the last call.
pub(crate) fn packet_statistics(fd: &OwnedFd) -> Result<(u32, u32), Fault> {
    let mut counts = [0_u32; 2];
    let mut length = mem::size_of_val(&counts) as libc::socklen_t;
    let (option, fd) = (libc::PACKET_STATISTICS, fd.as_raw_fd());
    // SAFETY: pointer and length are those of `counts`.
    let result = unsafe { libc::getsockopt(fd, libc::SOL_PACKET, option, counts.as_mut_ptr().cast(), &mut length) };
    check("packet statistics", result)?;
    Ok((counts[0], counts[1]))
}

/// Binds a packet socket to all interfaces of the thread's network namespace and to `protocol`.
pub(crate) fn bind_packets(fd: &OwnedFd, protocol: i32) -> Result<(), Fault> {
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (protocol as u16).to_be();
    let length = mem::size_of_val(&address) as libc::socklen_t;
    // SAFETY: pointer and length are those of `address`.
    check("bind", unsafe { libc::bind(fd.as_raw_fd(), ptr::from_ref(&address).cast(), length) })?;
    Ok(())
}

pub(crate) fn clock_ns(clock: libc::clockid_t) -> u64 {
    // SAFETY: all-zero is a valid timespec.
    let mut time: libc::timespec = unsafe { mem::zeroed() };
    // SAFETY: the pointer is that of `time`; the clocks used here always exist.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Waits until a packet can be read, but at most `ns` nanoseconds.
pub(crate) fn wait_readable(fd: &OwnedFd, ns: u64) {
    let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let timeout = libc::timespec { tv_sec: (ns / 1_000_000_000) as _, tv_nsec: (ns % 1_000_000_000) as _ };
    // SAFETY: the pointers are those of local variables. A signal or an error only ends the wait.
    unsafe { libc::ppoll(&mut poll, 1, &timeout, ptr::null()) };
}

/// Moves the thread to new namespaces of the kinds in `flags` (CLONE_NEW…).
pub(crate) fn unshare(what: &'static str, flags: i32) -> Result<(), Fault> {
    // SAFETY: the call takes no pointers.
    check(what, unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves the thread to an existing network namespace.
pub(crate) fn enter(namespace: &OwnedFd) -> Result<(), Fault> {
    // SAFETY: the call takes no pointers.
    check("setns", unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Mounts a file system of type `kind`. With MS_BIND in `flags`, makes `source` visible at `target`.
pub(crate) fn mount(source: &CStr, target: &CStr, kind: &CStr, flags: libc::c_ulong) -> Result<(), Fault> {
    // SAFETY: the pointers are those of C strings, and there is no data.
    check("mount", unsafe { libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, ptr::null()) })?;
    Ok(())
}

/// Returns the index of an interface in the thread's network namespace.
pub(crate) fn interface(name: &str) -> Result<u32, Fault> {
    let name = CString::new(name).map_err(|_| Fault { what: "interface", errno: libc::EINVAL })?;
    // SAFETY: the pointer is that of a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 { Err(Fault::last("interface")) } else { Ok(index) }
}

/// Ethtool requests that set one value, from linux/ethtool.h.
pub(crate) mod ethtool {
    pub const TX_CHECKSUM: u32 = 0x17;
    pub const TSO: u32 = 0x1f;
    pub const GSO: u32 = 0x24;
    pub const GRO: u32 = 0x2c;
}

/// Sets a feature of an interface in the namespace of the socket `fd`.
pub(crate) fn set_feature(fd: &OwnedFd, name: &str, feature: u32, value: bool) -> Result<(), Fault> {
    const SIOCETHTOOL: libc::c_ulong = 0x8946;
    let mut request = [feature, u32::from(value)];
    // SAFETY: all-zero is a valid ifreq.
    let mut interface: libc::ifreq = unsafe { mem::zeroed() };
    for (place, byte) in interface.ifr_name.iter_mut().zip(name.bytes().take(15)) {
        *place = byte as libc::c_char;
    }
    interface.ifr_ifru.ifru_data = request.as_mut_ptr().cast();
    // SAFETY: the request is a struct ethtool_value, which outlives the call.
    check("ethtool", unsafe { libc::ioctl(fd.as_raw_fd(), SIOCETHTOOL as _, &mut interface) }).map(drop)
}

/// Returns the processors on which the thread may run.
pub(crate) fn processors() -> Vec<usize> {
    // SAFETY: all-zero is a valid set.
    let mut set: libc::cpu_set_t = unsafe { mem::zeroed() };
    // SAFETY: pointer and length are those of `set`.
    let result = unsafe { libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) };
    // SAFETY: numbers below CPU_SETSIZE are within the set.
    (0..libc::CPU_SETSIZE as usize).filter(|&number| result == 0 && unsafe { libc::CPU_ISSET(number, &set) }).collect()
}

/// Restricts the thread to `processors`. Errors are ignored, because the placement only affects how late packets are.
pub(crate) fn run_on(processors: &[usize]) {
    if processors.is_empty() {
        return;
    }
    // SAFETY: all-zero is a valid set, and the numbers come from `processors`.
    unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        processors.iter().for_each(|&number| libc::CPU_SET(number, &mut set));
        libc::sched_setaffinity(0, mem::size_of_val(&set), &set);
    }
}

/// Lets the thread's timers expire without slack.
pub(crate) fn without_slack() {
    // SAFETY: the call takes no pointers.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1_u64) };
}

/// Gives the thread real-time priority (SCHED_FIFO), or removes it. Without the privilege, nothing changes.
pub(crate) fn set_precedence(has_precedence: bool) {
    let (policy, priority) = if has_precedence { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the pointer is that of a local variable.
    unsafe { libc::sched_setscheduler(0, policy | libc::SCHED_RESET_ON_FORK, &parameters) };
}

/// Returns the number of times that the kernel gave the thread's processor to another task.
pub(crate) fn involuntary_switches() -> u64 {
    // SAFETY: all-zero is a valid rusage, and the pointer is that of a local variable.
    unsafe {
        let mut usage: libc::rusage = mem::zeroed();
        libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
        usage.ru_nivcsw as u64
    }
}
