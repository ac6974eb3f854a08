//! Runs every program of this package. A promise that cannot be tested here says so and passes.

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

macro_rules! promises {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            run(env!(concat!("CARGO_BIN_EXE_", stringify!($name))));
        })*

        #[test]
        fn all_programs_are_run() {
            let mut listed = [$(concat!(stringify!($name), ".rs")),*].map(String::from).to_vec();
            let folder = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/bin")).unwrap();
            let mut there: Vec<_> = folder.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
            listed.sort();
            there.sort();
            assert_eq!(listed, there);
        }
    };
}

promises! {
    atfork_runs_in_child
    bell_wakes_all
    flock_goes_with_process
    hang_up_at_last_close
    mapping_survives_close
    pidfd_tells_death
    punched_hole_reads_zero
    sealed_memfd_keeps_its_size
    xdp_link_goes_with_last_fd
}
