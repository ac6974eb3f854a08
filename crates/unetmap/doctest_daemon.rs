// SPDX-License-Identifier: BSD-2-Clause
// Included by the examples in the documentation: starts a daemon of their own, from the build's folder. The value
// removes the folder of its socket when the example ends.
{
    struct Folder(std::path::PathBuf);
    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
    let folder = Folder(std::env::temp_dir().join(format!("unetmap-doc-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).expect("a temporary folder");
    let target = std::env::var_os("CARGO_TARGET_DIR").map(std::path::PathBuf::from);
    let target = target.unwrap_or_else(|| std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target"));
    let built = ["debug", "release"].map(|profile| target.join(profile).join("unetmapd"));
    // SAFETY: the example has not started another thread yet.
    unsafe {
        std::env::set_var("UNETMAP_SOCKET", folder.0.join("unetmapd.sock"));
        if let (None, Some(program)) = (std::env::var_os("UNETMAPD"), built.iter().find(|program| program.exists())) {
            std::env::set_var("UNETMAPD", program);
        }
    }
    folder
}
