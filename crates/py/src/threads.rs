//! Threads of the operating system, for the core, which starts none.

use gradtide_net::Threads;
use std::hint::spin_loop;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvError, Sender, channel};
use std::thread::Builder;

type Work = (usize, Arc<dyn Fn(usize) + Send + Sync>);

/// How often a thread looks for more work before it sleeps: for some tens of microseconds, which is less than it takes
/// to wake up.
const LOOKS: u32 = 1 << 11;

/// Threads that wait for work. They end with the pool.
#[derive(Debug)]
pub struct Pool {
    workers: Vec<Sender<Work>>,
    starts: AtomicU64,
}

impl Pool {
    /// So many threads, the caller's among them.
    ///
    /// # Errors
    /// What the system says if it does not give as many.
    pub fn new(count: usize) -> io::Result<Self> {
        let workers = (1..count).map(|_| worker()).collect::<io::Result<_>>()?;
        Ok(Self { workers, starts: AtomicU64::new(0) })
    }

    /// How often threads have worked together.
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
    for _ in 0..LOOKS {
        if let Ok(work) = receiver.try_recv() {
            return Ok(work);
        }
        spin_loop();
    }
    receiver.recv()
}
