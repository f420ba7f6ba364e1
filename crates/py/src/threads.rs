//! Thread pool of the operating system for the core, which starts no threads itself.

use gradtide_net::Threads;
use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvError, Sender, channel};
use std::thread::Builder;

type Work = (usize, Arc<dyn Fn(usize) + Send + Sync>);

/// Spins before a thread blocks: some tens of microseconds, less than a wake-up takes.
const SPINS: u32 = 1 << 11;

/// A pool of worker threads, which end with the pool.
#[derive(Debug)]
pub struct Pool {
    workers: Vec<Sender<Work>>,
    starts: AtomicU64,
}

impl Pool {
    /// A pool of `count` threads, including the caller's.
    ///
    /// # Errors
    /// The error of the system if it cannot start them.
    pub fn new(count: usize) -> io::Result<Self> {
        let workers = (1..count).map(|_| worker()).collect::<io::Result<_>>()?;
        Ok(Self { workers, starts: AtomicU64::new(0) })
    }

    /// Number of parallel sections so far.
    pub fn starts(&self) -> u64 {
        self.starts.load(Ordering::Relaxed)
    }
}

impl Threads for Pool {
    fn start(&self, count: usize, work: Arc<dyn Fn(usize) + Send + Sync>) {
        self.starts.fetch_add(1, Ordering::Relaxed);
        for (index, worker) in (1..count).zip(&self.workers) {
            worker.send((index, Arc::clone(&work))).expect("a thread ends before its pool only if it has failed");
        }
    }
}

fn worker() -> io::Result<Sender<Work>> {
    let (sender, receiver) = channel::<Work>();
    Builder::new().name("gradtide".into()).spawn(move || {
        while let Ok((index, work)) = next(&receiver) {
            work(index);
        }
    })?;
    Ok(sender)
}

fn next(receiver: &Receiver<Work>) -> Result<Work, RecvError> {
    for _ in 0..SPINS {
        if let Ok(work) = receiver.try_recv() {
            return Ok(work);
        }
        spin_loop();
    }
    receiver.recv()
}
