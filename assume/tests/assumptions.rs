// SPDX-License-Identifier: BSD-2-Clause
//! Runs every program of this package. An assumption that cannot be tested here is reported, and passes.

#![forbid(unsafe_code)]

use std::process::Command;

fn run(program: &str) {
    let output = Command::new(program).output().unwrap();
    let line = String::from_utf8(output.stdout).unwrap();
    assert_eq!(line.lines().count(), 1, "{program} must print one line: {line:?} ({})", output.status);
    match output.status.code() {
        Some(0) => {}
        Some(2) => eprintln!("{}", line.trim_end()),
        _ => panic!("{} ({})", line.trim_end(), output.status),
    }
}

macro_rules! programs {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(env!(concat!("CARGO_BIN_EXE_", stringify!($name))));
        })*

        #[test]
        fn every_program_is_run() {
            let mut listed = [$(concat!(stringify!($name), ".rs")),*].map(String::from).to_vec();
            let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin")).unwrap();
            let mut existing: Vec<_> = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            listed.sort();
            existing.sort();
            assert_eq!(listed, existing);
        }
    };
}

programs! {
    atfork_runs_in_child
    doorbell_wakes_all_waiters
    flock_released_at_exit
    futex_wakes_other_processes
    hang_up_at_last_close
    mapping_survives_close
    membarrier_orders_other_processes
    pidfd_readable_at_exit
    process_vm_faults_are_errors
    punched_hole_reads_zero
    sealed_memfd_keeps_its_size
    socket_lock_released_at_exit
    tcx_link_detached_at_last_close
    timerfd_ticks_wake_pollers
    unread_descriptors_count_for_the_sender
    wipeonfork_zeroes_in_child
    xdp_link_detached_at_last_close
}
