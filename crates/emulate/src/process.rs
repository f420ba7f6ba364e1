//! Commands in the namespaces of hosts.
//!
//! ```text
//! gradtide ── guard (network and mount namespace of the host) ── command, process 1 of a PID namespace
//! ```
//!
//! The kernel kills the guard when gradtide ends, kills the command when the guard ends, and kills all processes of the
//! PID namespace when its process 1 ends. Hence no process survives gradtide, even if gradtide is killed.

use crate::sys::{self, Fault};
use std::ffi::CString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{io, mem, ptr};

/// A command to run on a host.
#[derive(Clone, Debug)]
pub struct Program {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment variables beside those of this process.
    pub environment: Vec<(String, String)>,
    /// File to which standard output and standard error are written.
    pub output: String,
    /// Path of a file with the names of hosts, which replaces /etc/hosts for the command. Empty: no replacement.
    pub names: String,
}

fn failed(fault: Fault) -> io::Error {
    io::Error::from_raw_os_error(fault.errno)
}

/// Makes the kernel kill this process when its parent ends (PR_SET_PDEATHSIG).
fn die_with_parent() -> io::Result<()> {
    // SAFETY: the call takes no pointers.
    let result = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Waits for the guard's only child, and exits with the child's status. A child killed by signal n has the status 128 +
/// n, as in a shell.
fn guard(child: libc::pid_t) -> ! {
    let mut status = 0;
    // SAFETY: the calls use no pointer except to `status`, and `_exit` does not return to Rust code.
    unsafe {
        while libc::waitpid(child, &mut status, 0) < 0 && *libc::__errno_location() == libc::EINTR {}
        let code = if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) };
        libc::_exit(code)
    }
}

/// Closes all descriptors except standard input, output and error. Otherwise the guard would keep the pipe open on
/// which [`Command::spawn`] waits for the command to start.
fn close_others() {
    // SAFETY: the guard uses no other descriptor.
    unsafe { libc::syscall(libc::SYS_close_range, 3_u32, u32::MAX, 0_u32) };
}

/// Moves a forked process to its host's namespaces and forks the command. It runs before exec, so only
/// async-signal-safe calls are allowed.
fn enter_host(
    namespace: &OwnedFd,
    names: &Option<CString>,
    parent: libc::pid_t,
    processors: &[usize],
) -> io::Result<()> {
    die_with_parent()?;
    // SAFETY: the call takes no pointers.
    if unsafe { libc::getppid() } != parent {
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    sys::run_on(processors);
    sys::enter(namespace).map_err(failed)?;
    sys::unshare("namespaces", libc::CLONE_NEWNS | libc::CLONE_NEWPID).map_err(failed)?;
    sys::mount(c"none", c"/", c"", libc::MS_REC | libc::MS_PRIVATE).map_err(failed)?;
    // SAFETY: neither process accesses memory whose lock another thread may have held at the fork.
    let child = unsafe { libc::fork() };
    match child {
        0 => (),
        ..0 => return Err(io::Error::last_os_error()),
        _ => {
            close_others();
            guard(child)
        }
    }
    die_with_parent()?;
    // The mounts may fail. The command then sees the processes and interfaces of the system outside of its namespaces.
    let _ = sys::mount(c"proc", c"/proc", c"proc", 0);
    let _ = sys::mount(c"sysfs", c"/sys", c"sysfs", 0);
    if let Some(names) = names {
        let _ = sys::mount(names, c"/etc/hosts", c"", libc::MS_BIND);
    }
    // SAFETY: an all-zero set is empty, and the pointers are those of local variables. The signals are reset because a
    // process inherits the blocked and ignored ones, and Python ignores SIGPIPE.
    unsafe {
        let mut none: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        // In a session of its own, the command does not receive Ctrl-C. Gradtide receives it and kills the commands.
        libc::setsid();
    }
    Ok(())
}

pub(crate) fn start(namespace: &OwnedFd, program: &Program, processors: &[usize]) -> io::Result<Child> {
    let output = File::create(Path::new(&program.output))?;
    let (name, arguments) = program.command.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let names = CString::new(program.names.as_str())?;
    let names = (!program.names.is_empty()).then_some(names);
    let (namespace, processors) = (namespace.try_clone()?, processors.to_vec());
    // SAFETY: the call takes no pointers and cannot fail.
    let parent = unsafe { libc::getpid() };
    let mut command = Command::new(name);
    command.args(arguments).stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    command.envs(program.environment.iter().map(|(name, value)| (name, value)));
    debug_assert!(namespace.as_raw_fd() > 2, "not a standard descriptor");
    // SAFETY: `enter_host` makes only system calls, and allocates nothing.
    unsafe { command.pre_exec(move || enter_host(&namespace, &names, parent, &processors)) };
    command.spawn()
}
