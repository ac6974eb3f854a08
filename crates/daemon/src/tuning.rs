// SPDX-License-Identifier: BSD-2-Clause
//! Constants that tune the daemon's waiting, batching and limits.

/// Mediator threads.
pub(crate) mod mediator {
    use std::time::Duration;

    /// Longest sleep.
    pub(crate) const MAX_SLEEP: Duration = Duration::from_millis(500);
    /// Longest time that a thread which is stopped waits for the interface to send.
    pub(crate) const EXIT_FLUSH_LIMIT: Duration = Duration::from_millis(20);
    /// Slots moved at once: as many as the kernel sends in one call. Measured on veth, as a fraction of a direct
    /// sender's rate: 0.75 with 64, 0.84 with 256; forwarding 0.41 and 0.87.
    pub(crate) const BATCH: u32 = 256;
    /// Sleeps that found a port ready although no packet could be moved, after which a thread pauses.
    pub(crate) const MAX_SPURIOUS: u32 = 3;
    /// Pause after a program set invalid ring pointers.
    pub(crate) const BAD_POINTERS_PAUSE: Duration = Duration::from_millis(1);
}

/// Threads that deliver what monitored interfaces receive.
pub(crate) mod arrival {
    use std::time::Duration;

    /// Pause before packets are delivered again that found the ring full, or being synced.
    pub(crate) const RETRY: Duration = Duration::from_millis(2);
}

/// The broker.
pub(crate) mod broker {
    use std::time::Duration;

    /// Bytes of a message; longer ones are sent as files.
    pub(crate) const MESSAGE_BYTES: usize = 32 << 10;
    /// Most bytes of a request in a file. The longest has a filter of 4096 instructions.
    pub(crate) const REQUEST_BYTES: u64 = 1 << 20;
    /// Most bytes of a reply in a file: a list of all interfaces, or a configuration of 1 MiB, in JSON.
    pub(crate) const REPLY_BYTES: u64 = 64 << 20;
    /// How long a request is sent again whose descriptors the kernel refuses to pass.
    pub(crate) const SEND_LIMIT: Duration = Duration::from_secs(1);
    /// Connections, each with a thread of the broker, for threads that open and close interfaces: so many drivers can
    /// be slow before others' interfaces wait for them.
    pub(crate) const INTERFACE_LANES: usize = 4;
    /// Most programs and settings that are kept: three for each interface that is open.
    pub(crate) const MAX_OBJECTS: usize = 4096;
    /// Threads that close the sockets of hidden ends after the end of the daemon: each waits for the kernel nearly all
    /// the time.
    pub(crate) const CLOSERS: usize = 64;
    /// Longest time for which a program redirects frames without renewal.
    pub(crate) const MAX_DEADLINE: Duration = Duration::from_secs(5);
    /// Most parameters that are shown as files: more than there are knobs.
    pub(crate) const MAX_PARAMETERS: usize = 128;
    /// Most processes that access the memory of programs.
    pub(crate) const MAX_HELPERS: usize = 256;
    /// Most bytes of the text about what outlasts the daemon, and most network namespaces that it names: as many as a
    /// message has.
    pub(crate) const MAX_TEXT: u64 = 16 << 20;
    pub(crate) const MAX_NAMESPACES: usize = 250;
    /// Longest wait for the broker of an earlier daemon, which detaches programs, and the interval of its polls.
    pub(crate) const FORMER_LIMIT: Duration = Duration::from_secs(5);
    pub(crate) const FORMER_POLL: Duration = Duration::from_millis(1);
    /// Pause before a port of an earlier daemon is tried again, of which the kernel still holds something.
    pub(crate) const FORMER_PAUSE: Duration = Duration::from_millis(5);
    /// Ports of an earlier daemon whose sockets are opened at the same time: one connection to the broker remains for
    /// interfaces that programs open.
    pub(crate) const RETURNS_AT_ONCE: usize = INTERFACE_LANES - 1;
}

/// The kernel's path between persistent ports.
pub(crate) mod kernel_path {
    use std::time::Duration;

    /// Addresses of a port that the kernel is told: all 254 ports of a switch have room. Packets of others go through
    /// the switch's thread.
    pub(crate) const ADDRESSES_OF_PORT: usize = 64;
    /// How often the switches' tables are compared with what the kernel was told.
    pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
    /// How often in the life of an address it is asked whether the kernel has seen it.
    pub(crate) const LOOKS_PER_AGE: u32 = 8;
}

/// Replacing the daemon.
pub(crate) mod handover {
    use std::time::Duration;

    /// Longest time that the daemon, which serves nobody meanwhile, waits for its successor to receive and rebuild
    /// everything.
    pub(crate) const COMMIT_LIMIT: Duration = Duration::from_secs(3);
    /// Longest time that the successor waits for a message of the daemon.
    pub(crate) const REPLY_LIMIT: Duration = Duration::from_secs(10);
    /// Pause before a message is sent again for which there was no room.
    pub(crate) const SEND_POLL: Duration = Duration::from_micros(200);
    /// How long a successor is told to try again while requests wait for interfaces, and the pause between tries.
    pub(crate) const BUSY_LIMIT: Duration = Duration::from_secs(10);
    pub(crate) const BUSY_POLL: Duration = Duration::from_millis(20);
    /// How long nothing new is begun at most while what is in progress is completed.
    pub(crate) const DRAIN_LIMIT: Duration = Duration::from_secs(2);
    /// Most bytes of a state.
    pub(crate) const MAX_STATE_BYTES: u64 = 256 << 20;
}

/// Going on after a crash.
pub(crate) mod store {
    use std::time::Duration;

    /// Pause between two states that are kept: so many times as long as the first took, within these bounds. What is
    /// opened meanwhile ends with a crash.
    pub(crate) const KEEP_PAUSE: Duration = Duration::from_millis(10);
    pub(crate) const MAX_KEEP_PAUSE: Duration = Duration::from_millis(250);
    pub(crate) const KEEP_SHARE: u32 = 20;
    /// How long sockets of queues that were closed are kept while the state cannot be kept anew. A queue that is opened
    /// waits longer for its former socket.
    pub(crate) const CLOSED_LIMIT: Duration = Duration::from_millis(5);
    /// How long the daemon waits at most for a message of the process that keeps the state, or to send it one; and for
    /// it to receive descriptors of a state while the kernel allows no more.
    pub(crate) const SEND_LIMIT: Duration = Duration::from_secs(1);
    pub(crate) const PUSH_LIMIT: Duration = Duration::from_millis(100);
    /// How long that process may take to say that it keeps a state, before the ports count as not kept.
    pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(1);
    /// Pause before a state is sent again that could not be sent. It doubles up to the second.
    pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(50);
    pub(crate) const MAX_RETRY_PAUSE: Duration = Duration::from_secs(2);
    /// Most processes that are to take the place of that one which are started in a period.
    pub(crate) const MAX_SPARES: usize = 5;
    pub(crate) const SPARE_PERIOD: Duration = Duration::from_secs(10);
    /// Descriptors that such a process has for itself, and needs to start a daemon.
    pub(crate) const OWN_FILES: usize = 20;
    /// Time between two messages of the log that the ports are not kept.
    pub(crate) const LOG_PAUSE: Duration = Duration::from_secs(60);
    /// How long a daemon that this process starts may take to go on, before another one is started.
    pub(crate) const RESTART_LIMIT: Duration = Duration::from_secs(15);
    /// Most crashes in a period after which the daemon is started again: what it goes on with may be the cause.
    pub(crate) const MAX_CRASHES: usize = 5;
    pub(crate) const CRASH_PERIOD: Duration = Duration::from_secs(10);
}

/// Interfaces.
pub(crate) mod nic {
    use std::time::Duration;

    /// Slots of a transmit ring for which the request says 0: enough to keep a link busy. The buffers of more slots,
    /// which all begin at the same few positions of a CPU cache, evict each other.
    pub(crate) const DEFAULT_TX_SLOTS: u32 = 512;
    /// Most rings of a direction.
    pub(crate) const MAX_RINGS: u32 = 256;
    /// Slots of a receive ring for which the request says 0: room for packets that arrive while the program is busy.
    pub(crate) const DEFAULT_RX_SLOTS: u32 = 1024;
    /// Interval at which the deadlines of the kernel's programs are renewed.
    pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);
    /// Interval at which the kernel's programs are asked for the faults that they have found in frames, and the number
    /// of frames that have to be faulty.
    pub(crate) const LOOK_INTERVAL: Duration = Duration::from_secs(1);
    pub(crate) const FAULTY_FRAMES: u64 = 3;
    /// Time after the last renewal for which the kernel's programs still redirect packets. Longer than the interval,
    /// so that a daemon that is delayed keeps its interfaces.
    pub(crate) const HEARTBEAT_TIMEOUT: Duration = Duration::from_millis(1750);
    /// Time after the last renewal for which a program that stays still redirects the packets of a queue.
    pub(crate) const QUEUE_TIMEOUT: Duration = Duration::from_millis(950);
    /// Time for which a program may leave frames in its queue before no more are given to it, unless the knob
    /// `bypass_stall` has another: with the interval less than a second.
    pub(crate) const QUEUE_STALL: Duration = Duration::from_millis(600);
    /// Time after which a queue counts as served though its receive ring was not synced, as by a program that only
    /// sends or has very many rings.
    pub(crate) const FIRST_SYNC_LIMIT: Duration = Duration::from_secs(2);
    /// Most begins and ends of a bypass that are kept until the control thread adds them to the log of events.
    pub(crate) const MAX_BYPASS_CHANGES: usize = 64;
    /// Longest time that one event may take the control thread before it counts as hung. Drivers reset their devices in
    /// it when a program is attached: up to 5 s in an emulated processor.
    pub(crate) const MAX_CONTROL_DELAY: Duration = Duration::from_secs(30);
    /// How often a request waits for its turn at an interface before it is refused: each time but the first, the
    /// interface was opened or closed at its turn.
    pub(crate) const MAX_ROUNDS: u32 = 32;
    /// Most users for whom threads read about interfaces at a time.
    pub(crate) const MAX_SURVEYS: usize = 16;
    /// Most changes of interfaces that are kept while an interface of their namespace is opened or closed.
    pub(crate) const MAX_DEFERRED: usize = 4096;
    /// Time between two looks at whether namespaces with attached interfaces still have a name or a thread, and between
    /// those that find none, of which so many must: a thread that starts others may be missed.
    pub(crate) const ABANDONED_INTERVAL: Duration = Duration::from_millis(500);
    pub(crate) const ABANDONED_AGAIN: Duration = Duration::from_millis(50);
    pub(crate) const ABANDONED_ROUNDS: u32 = 2;
    /// Longest wait for the undo process of an earlier daemon, which restores offloads, and the interval of its polls.
    pub(crate) const UNDO_LIMIT: Duration = Duration::from_millis(300);
    pub(crate) const UNDO_POLL: Duration = Duration::from_millis(2);

    const _: () = assert!(HEARTBEAT_TIMEOUT.as_millis() > HEARTBEAT_INTERVAL.as_millis());
    const _: () = assert!(QUEUE_TIMEOUT.as_millis() > 2 * HEARTBEAT_INTERVAL.as_millis());
    const _: () = assert!(MAX_CONTROL_DELAY.as_millis() > HEARTBEAT_TIMEOUT.as_millis());
}

/// The access policy.
pub(crate) mod policy {
    use std::time::Duration;

    /// A file that changed less than this ago, in whole seconds, may change again without its times showing it.
    pub(crate) const SETTLED: Duration = Duration::from_secs(2);
}

/// Budgets of users, where the policy file has none. The amounts are in the order of `budget::Resource`.
pub(crate) mod budget {
    /// Of one user: connections (a session and a lock holder each, so about 256 ports), descriptors, rings, slots (64
    /// pipes of the default size and as many switch ports), bytes (the buffers of 64 such switch ports are 264 MiB, as
    /// are those of the largest port), threads, descriptors in flight (70 answers).
    pub(crate) const DEFAULT: [u64; 7] = [512, 2048, 1024, 1 << 19, 512 << 20, 64, 512];
    /// A port has at most one in so many of its user's slots, so that creating it delays no other user for long.
    pub(crate) const LARGEST_PORT: u64 = 4;
    /// Requests of one user in a second.
    pub(crate) const DEFAULT_REQUESTS: u32 = 2000;
    /// Of all users but root together.
    pub(crate) const DEFAULT_TOTAL: [u64; 7] = [8192, 1 << 20, 8192, 4 << 20, 2 << 30, 256, 1 << 20];
    /// One user has at most one in so many of what all but root can have, unless the policy says otherwise.
    pub(crate) const USER_SHARE: u64 = 2;
    /// A user may have at most one in so many of the descriptors in flight that all users may have.
    pub(crate) const IN_FLIGHT_USERS: u64 = 16;
    /// Most files that the daemon has closed and programs of all users but root have: a state has a record of each, 15
    /// bytes of 500 KiB.
    pub(crate) const MAX_LEFT_FILES: u64 = 32_768;
}

/// Pages of files that have ended.
pub(crate) mod pinned {
    use std::time::Duration;

    /// They are measured, which takes 0.2 ms, when so many bytes have ended: opening and closing as many takes longer.
    pub(crate) const MEASURED_FROM: u64 = 2 << 20;
    /// As long as a user is charged, they are measured after this time.
    pub(crate) const INTERVAL: Duration = Duration::from_millis(100);
    /// Bytes, and bytes of each processor, by which the kernel's counts differ: it charges 64 pages ahead on each.
    pub(crate) const NOISE: u64 = 1 << 20;
    pub(crate) const NOISE_OF_CPU: u64 = 256 << 10;
}

/// The machine's limits for the daemon, and how they are divided.
pub(crate) mod limits {
    use unetmap_core::control::wire::MAX_REQUEST;

    /// The daemon does not start with less: it could not open a pipe for a user. With a store, twice the descriptors.
    pub(crate) const LEAST_FILES: u64 = 128;
    pub(crate) const LEAST_MEMORY: u64 = 32 << 20;
    pub(crate) const LEAST_TASKS: u64 = 16;
    /// The daemon's own amounts, without any user. Descriptors: 65, of which 32 are files made ahead. Bytes of all its
    /// processes: 5.5 MiB, and 1 MiB for each helper of the node. Threads and processes: 12; 16 more for the node, and
    /// as many that close connections or read about interfaces at a time.
    pub(crate) const OWN_FILES: u64 = 72;
    pub(crate) const OWN_MEMORY: u64 = 16 << 20;
    pub(crate) const OWN_TASKS: u64 = 48;
    /// Bytes of a connection: the kernel's for an answer that it does not read, and its next message, which waits.
    pub(crate) const CONNECTION_BYTES: u64 = (128 << 10) + MAX_REQUEST as u64;
    /// Bytes of a helper of the node.
    pub(crate) const HELPER_BYTES: u64 = 1 << 20;
    /// One in so many of what there is is reserved for root; of descriptors at least so many: a port, and `unetmap ls`.
    pub(crate) const RESERVE_SHARE: u64 = 8;
    pub(crate) const LEAST_RESERVE: u64 = 16;
    /// Of the descriptors that a process may have in flight, users may have one in so many, and root one in so many.
    /// The rest is for the processes that keep or take over the daemon's state, and for last answers above a share.
    pub(crate) const IN_FLIGHT_OF_USERS: u64 = 2;
    pub(crate) const IN_FLIGHT_OF_ROOT: u64 = 4;
}

/// Regions.
pub(crate) mod region {
    /// Buffers that interfaces share: 64 MiB in buffers of 2 KiB.
    pub(crate) const INTERFACES_BUFS: u32 = 32_768;
    /// Rings of four pipes.
    pub(crate) const FOUR_PIPES_RINGS: u32 = 16;
    /// Most extra buffers of a session. The daemon links them into a list, which touches a page for every two buffers:
    /// the bound keeps that to milliseconds, and the memory small.
    pub(crate) const MAX_EXTRA: u32 = 16384;
    /// Bytes that the daemon touches for the extra buffers of a session of a user with a budget, whose requests may not
    /// delay other users: 1024 pages take about 3 ms.
    pub(crate) const MAX_EXTRA_BYTES_OF_USER: u64 = 4 << 20;
    /// Regions of more resident bytes are freed by another thread, which takes 0.3 us a page, and how many may wait for
    /// it: each keeps a descriptor that no budget counts.
    pub(crate) const LARGE: u64 = 1 << 20;
    pub(crate) const MAX_WAITING: usize = 32;
    /// Memory of a new region that its request touches is prepared beside the control thread from so many bytes on, so
    /// many at a time: a default pipe has a third. 64 pages take about 0.1 ms.
    pub(crate) const PREPARED_FROM: u64 = 256 << 10;
    pub(crate) const PREPARED_SLICE: u64 = 256 << 10;
    /// Alignment of regions, in bytes: that of a huge page.
    pub(crate) const ALIGN: u64 = 2 << 20;
}

/// Memory files that are made ahead.
pub(crate) mod memory_files {
    /// Most files that are ready: enough to open eight pipes, which need four each. They are empty, but each is a
    /// descriptor that no budget counts.
    pub(crate) const MOST: usize = 32;
    /// Fewer are made up to `MOST`.
    pub(crate) const LEAST: usize = 24;

    /// Files that are ready when the daemon begins to serve: enough for a pipe.
    pub(crate) const AT_START: usize = 4;

    const _: () = assert!(AT_START < LEAST && LEAST < MOST && MOST <= unetmap_sys::socket::MAX_FDS);
}

/// Waits for threads that move packets.
pub(crate) mod thread_waits {
    use std::time::Duration;

    /// How long the control thread waits for such a thread before it looks whether that one is held up, and how long
    /// if it is not.
    pub(crate) const LIMIT: Duration = Duration::from_millis(20);
    pub(crate) const LIMIT_OF_BUSY: Duration = Duration::from_secs(5);
    /// How often it looks: at the thread's state, whether it has ended, and for a thread for which it does not wait.
    pub(crate) const POLL: Duration = Duration::from_millis(5);
    pub(crate) const END_POLL: Duration = Duration::from_micros(50);
    pub(crate) const RETIRED_POLL: Duration = Duration::from_millis(100);
}

/// The control socket.
pub(crate) mod server {
    use std::time::Duration;

    /// Most connections accepted at once, and the time after which no further one is, so that a stream of new ones
    /// delays no other client; the time is looked at after so many. A full queue is accepted in a few turns.
    pub(crate) const MAX_ACCEPTS: u32 = 256;
    pub(crate) const ACCEPT_LIMIT: Duration = Duration::from_millis(1);
    pub(crate) const ACCEPTS_BETWEEN_LOOKS: u32 = 16;
    /// Pause in accepting connections when there is no descriptor for one.
    pub(crate) const ACCEPT_PAUSE: Duration = Duration::from_millis(10);
    /// Connections that are admitted at a turn of their user, and most that may wait for such a turn.
    pub(crate) const ADMISSIONS_A_TURN: usize = 16;
    pub(crate) const MAX_WAITING: u64 = 2048;
    /// If no more were admitted, what has arrived on them is answered at the same turn: opening a port takes a process
    /// two connections.
    pub(crate) const ANSWERED_WITH_ADMISSION: usize = 2;
    /// Time after which a connection without a request is closed, if its user has a budget.
    pub(crate) const HELLO_LIMIT: Duration = Duration::from_secs(10);
    /// Time between attempts to exit, while a client that starts holds the lock.
    pub(crate) const EXIT_RETRY: Duration = Duration::from_millis(100);
    /// How long the control thread works at a snapshot before it serves other requests, and how many of the user's own
    /// are served between two slices while there are any.
    pub(crate) const SNAPSHOT_SLICE: Duration = Duration::from_micros(250);
    pub(crate) const BETWEEN_SLICES: u32 = 8;
    /// How long the processor of a switch's thread is taken to be the same. A snapshot needs it for each port, and the
    /// kernel takes longer for an answer than all else of the port.
    pub(crate) const CPU_AGE: Duration = Duration::from_millis(10);
    /// Work that takes the control thread longer is counted as long.
    pub(crate) const LONG_WORK: Duration = Duration::from_millis(5);
    /// A user who did little of late may use so much of the control thread's time before others: a few opens.
    pub(crate) const HEAD_START: Duration = Duration::from_millis(6);
    /// Users whose last requests are remembered before those of the past are forgotten.
    pub(crate) const REMEMBERED_USERS: usize = 1024;
}

/// The log of events.
pub(crate) mod events {
    /// Events that are kept of a user, and users whose events are kept: 5 MB at most, as an event takes 160 bytes with
    /// its names.
    pub(crate) const MAX_OF_USER: usize = 512;
    pub(crate) const MAX_USERS: usize = 64;
    /// Of these, events of changes of one interface, which others than its user can cause, and of all of the user's.
    pub(crate) const MAX_OF_INTERFACE: usize = 64;
    pub(crate) const MAX_OF_INTERFACES: usize = 256;
    /// Events of an answer: more are asked for again, so that none takes the control thread long.
    pub(crate) const MAX_OF_ANSWER: usize = 1000;
    /// Characters of the reason of a refusal.
    pub(crate) const MAX_REASON: usize = 200;
}

/// Answers that the kernel does not send, as too many descriptors of the daemon's user are in flight.
pub(crate) mod answers {
    use std::time::Duration;

    /// Pause before such an answer is sent again, and how long that is tried before the request fails: programs wait
    /// longer for an answer.
    pub(crate) const RESEND_PAUSE: Duration = Duration::from_millis(5);
    pub(crate) const RESEND_LIMIT: Duration = Duration::from_secs(3);
}

/// Restrictions of the daemon.
pub(crate) mod confinement {
    /// `oom_score_adj` of root's daemon: when memory runs out, every ordinary process is killed before, among them the
    /// tenant that used it up. Not -1000, so that a daemon that grows itself can still be killed.
    pub(crate) const OOM_SCORE: i32 = -900;
    /// Niceness of the control thread of root's daemon: it runs before programs that keep the CPUs busy, on which
    /// everybody's requests would wait. Open vSwitch's is the same.
    pub(crate) const CONTROL_NICE: i32 = -10;
    /// The users and groups of which root's daemon becomes one: of no account, also of directory services (their
    /// numbers end at 2,000,200,000), and of no container (0x6fffffff). So many that two of a hundred daemons of a
    /// machine are the same user with a probability of 1 in 27,000.
    pub(crate) const USERS: std::ops::Range<u32> = 0x7800_0000..0x8000_0000;
}

/// Closing of connections.
pub(crate) mod closer {
    use std::time::Duration;

    /// Connections of a user that wait to be closed, and the time since its thread makes no progress, from which on it
    /// gets no new ones.
    pub(crate) const MAX_PENDING_OF_USER: usize = 64;
    pub(crate) const SLOW: Duration = Duration::from_secs(2);
    /// Most threads that close connections, one for each user with pending ones.
    pub(crate) const MAX_THREADS: usize = 16;
}

/// The node, `/dev/netmap`.
pub(crate) mod node {
    use std::time::Duration;

    /// Bytes of indirect data that are read for one sync; packets beyond are dropped. More than a ring of 4096 slots
    /// has with buffers of 8 KiB. Not measured.
    pub(crate) const MAX_INDIRECT_BYTES: usize = 32 << 20;

    /// How long the accesses to a program's memory may take in one request. A page fault there may never end; one of an
    /// honest program may wait for a busy disk.
    pub(crate) const MEMORY_LIMIT: Duration = Duration::from_secs(5);
    /// How long a request waits at most for a helper, while all that its user may have are occupied.
    pub(crate) const HELPER_WAIT_LIMIT: Duration = Duration::from_secs(5);
    /// How long the accesses that have begun may take when a daemon that is to be replaced begins no others, and how
    /// often a request that waits for a helper checks for it.
    pub(crate) const CUT_LIMIT: Duration = Duration::from_secs(1);
    pub(crate) const CUT_CHECK: Duration = Duration::from_millis(50);
    /// Helper processes that access memory: most at a time for one user, and for all users who are not root. One needs
    /// about a megabyte, and occupies a thread.
    pub(crate) const MAX_HELPERS_OF_USER: usize = 8;
    pub(crate) const MAX_HELPERS: usize = 64;
    /// Helpers without a request that are kept, and started with the node. Further ones are started for each request.
    pub(crate) const MAX_IDLE_HELPERS: usize = 4;

    /// How often a sync with data of the program's packets is tried while another thread syncs the ring, and the time
    /// between two tries: together above the time for which a thread is preempted. Not measured.
    pub(crate) const MAX_TRIES_WITH_DATA: u32 = 500;
    pub(crate) const RING_BUSY_RETRY: Duration = Duration::from_micros(100);

    /// Mounts: as many as CPUs within these bounds. A thread does not spin for a program that shares its mount with
    /// others.
    pub(crate) const MIN_MOUNTS: usize = 4;
    pub(crate) const MAX_MOUNTS: usize = 16;
    /// Most open files of a user, as each can occupy a thread.
    pub(crate) const MAX_FILES_OF_USER: u32 = 512;
    /// Threads that wait to read a mount's requests. Further ones end.
    pub(crate) const MAX_IDLE_THREADS: usize = 2;
    /// How long a request waits at most until earlier requests of other mounts were read.
    pub(crate) const CATCH_UP_LIMIT: Duration = Duration::from_secs(1);

    /// Shortest interval between two look-ups of the CPU from which requests come.
    pub(crate) const LOOKUP_INTERVAL: Duration = Duration::from_millis(1);
    /// As many requests in an interval, or in a longer time between two requests, are fast.
    pub(crate) const FAST_REQUESTS: u32 = 16;

    /// How long a poll is held.
    pub(crate) const HOLD: Duration = Duration::from_micros(300);
    /// How long a thread spins on the rings before a poll is held: about the time until another CPU has woken this one
    /// and the program runs.
    pub(crate) const POLL_SPIN: Duration = Duration::from_micros(30);
    /// A thread that yields the CPU for longer than this shares it with other threads.
    pub(crate) const SHARED_CPU_YIELD: Duration = Duration::from_micros(20);
    /// Most polls of a file that find nothing and are not held, after some that were held without success.
    pub(crate) const MAX_BACKOFF: u32 = 256;
    /// Most polls of one user held at a time: each is checked after each request of that user.
    pub(crate) const MAX_HELD_OF_USER: usize = 4;
    /// Most polls held at a time.
    pub(crate) const MAX_HELD: usize = 32;
    /// Threads whose last poll is remembered. If the numbers of two threads differ by a multiple of this, neither is
    /// held while both poll.
    pub(crate) const REMEMBERED_THREADS: usize = 4096;

    /// How long the waker relies on doorbells. A peer that is killed, or hostile, between moving a position and
    /// notifying wakes no other process.
    pub(crate) const RECHECK_INTERVAL: Duration = Duration::from_millis(500);
    /// How long after a poll that found something ready a file is armed for further changes.
    pub(crate) const LINGER: Duration = Duration::from_millis(1);
    /// How long a request may continue after its program received a signal.
    pub(crate) const SIGNAL_GRACE: Duration = Duration::from_secs(1);
    /// Timeouts up to this are waited for with microsecond resolution; epoll rounds up to milliseconds.
    pub(crate) const FINE_TIMEOUT: Duration = Duration::from_millis(2);
    /// How long a daemon that is to be replaced waits for requests that have begun, and how often it checks.
    pub(crate) const PAUSE_LIMIT: Duration = Duration::from_millis(250);
    pub(crate) const PAUSE_POLL: Duration = Duration::from_millis(1);
    /// How long the kernel may take to free a queue whose program has just exited, and the pause between two attempts.
    pub(crate) const QUEUE_FREE_LIMIT: Duration = Duration::from_secs(2);
    pub(crate) const QUEUE_FREE_PAUSE: Duration = Duration::from_millis(20);
}

/// The log.
pub(crate) mod log {
    /// Bytes of a field of a message to the journal, so that all fit a datagram of 200 KiB, the default limit of Linux.
    pub(crate) const MAX_JOURNAL_BYTES: usize = 8192;
    /// How many times more messages are logged of a kind that no user is known to have caused: 5; and of details, which
    /// are those of the levels debug and trace: 1000. Not measured.
    pub(crate) const TIMES_OF_NOBODY: u32 = 5;
    pub(crate) const TIMES_OF_DETAILS: u32 = 1000;
}
