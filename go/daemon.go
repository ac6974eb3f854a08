// SPDX-License-Identifier: BSD-2-Clause
// Copyright (c) 2026, the unetmap authors

package unetmap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
)

// Finding the daemon, and starting one, as all of unetmap's programs do (crates/core/src/control/client.rs).

const (
	systemSocket = "/run/unetmap/unetmapd.sock"
	startTries   = 3
	// The user that stands for all that have no number in this user namespace.
	overflowUID = 65534
)

// isSecure says whether this program has more privileges than its caller, who then chooses nothing here.
var isSecure = sync.OnceValue(func() bool {
	const secure = 23 // AT_SECURE
	vector, err := os.ReadFile("/proc/self/auxv")
	for ; err == nil && len(vector) >= 16; vector = vector[16:] {
		if binary.NativeEndian.Uint64(vector) == secure {
			return binary.NativeEndian.Uint64(vector[8:]) != 0
		}
	}
	return os.Getuid() != os.Geteuid() || os.Getgid() != os.Getegid()
})

// variable returns an environment variable, unless the caller of this program must not choose it.
func variable(name string) string {
	if isSecure() {
		return ""
	}
	return os.Getenv(name)
}

// ownSocket returns where this user's own daemon listens. Folders that it needs are made.
func ownSocket() (string, error) {
	if chosen := variable("UNETMAP_SOCKET"); chosen != "" {
		return filepath.Abs(chosen)
	}
	uid := os.Geteuid()
	if uid == 0 {
		return systemSocket, privateFolder(filepath.Dir(systemSocket), 0o755)
	}
	run := variable("XDG_RUNTIME_DIR")
	if isSecure() {
		run = fmt.Sprintf("/run/user/%d", uid)
	}
	if info, err := os.Stat(run); run != "" && err == nil && info.IsDir() && owner(info) == uid {
		return filepath.Join(run, "unetmapd.sock"), nil
	}
	temporary := "/tmp"
	if !isSecure() {
		temporary = os.TempDir()
	}
	folder := filepath.Join(temporary, fmt.Sprintf("unetmap-%d", uid))
	return filepath.Join(folder, "unetmapd.sock"), privateFolder(folder, 0o700)
}

func owner(info fs.FileInfo) int {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(stat.Uid)
	}
	return -1
}

// privateFolder makes a folder if it is missing, and refuses one of another user, who could replace the socket.
func privateFolder(folder string, mode fs.FileMode) error {
	err := os.Mkdir(folder, mode)
	if err == nil || !errors.Is(err, fs.ErrExist) {
		return err
	}
	info, err := os.Lstat(folder)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
	case owner(info) == os.Geteuid() && info.Mode().Perm()&0o022 == 0:
		return nil
	case folder == filepath.Dir(systemSocket) && owner(info) == overflowUID:
		// The machine's, mounted into a container.
		return nil
	}
	return fmt.Errorf("the daemon's folder %s belongs to another user, or others can write to it (remove it)", folder)
}

// connectTo connects to a daemon that runs as this user or as root, because clients trust the daemon.
func connectTo(path string) (*net.UnixConn, error) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	var peer *syscall.Ucred
	controlErr := raw.Control(func(fd uintptr) {
		peer, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err = errors.Join(controlErr, err); err != nil {
		_ = conn.Close()
		return nil, err
	}
	uid := int(peer.Uid)
	// In a container with a user namespace, root of the machine has no number: the socket's place must be deliberate.
	isDeliberate := path == systemSocket || variable("UNETMAP_SOCKET") != ""
	if uid != 0 && uid != os.Geteuid() && !(isDeliberate && uid == overflowUID) {
		_ = conn.Close()
		return nil, fmt.Errorf("the daemon at %s runs as user %d, not as this user or root: %w", path, uid, fs.ErrPermission)
	}
	return conn, nil
}

// connectSystem connects to the system's daemon, if it runs and is not this user's own.
func connectSystem() *net.UnixConn {
	if variable("UNETMAP_SOCKET") != "" || os.Geteuid() == 0 {
		return nil
	}
	conn, err := connectTo(systemSocket)
	if err != nil {
		return nil
	}
	return conn
}

// connectOwn connects to this user's own daemon, and starts one if none runs.
func connectOwn() (*net.UnixConn, string, error) {
	path, err := ownSocket()
	if err != nil {
		return nil, path, err
	}
	for range startTries {
		var conn *net.UnixConn
		conn, err = connectTo(path)
		if err == nil || !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, path, err
		}
		if err := start(path); err != nil {
			return nil, path, err
		}
	}
	return nil, path, fmt.Errorf("a daemon was started at %s, and does not answer: %w", path, err)
}

// start starts a daemon in the background. Of several programs that do so at the same time one succeeds.
func start(path string) error {
	program, err := daemonProgram()
	if err != nil {
		return err
	}
	output, err := exec.Command(program, "--socket", path).CombinedOutput()
	if conn, connErr := connectTo(path); connErr == nil {
		return conn.Close()
	}
	if err != nil {
		return fmt.Errorf("starting %s: %w: %s", program, err, strings.TrimSpace(string(output)))
	}
	return nil
}

// daemonProgram returns UNETMAPD, or the daemon's program beside this one, in the PATH, or in the system's folders.
func daemonProgram() (string, error) {
	if chosen := variable("UNETMAPD"); chosen != "" {
		return chosen, nil
	}
	var folders []string
	if !isSecure() {
		if self, err := os.Executable(); err == nil {
			folders = append(folders, filepath.Dir(self))
		}
		folders = append(folders, filepath.SplitList(os.Getenv("PATH"))...)
	}
	folders = append(folders, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin")
	for _, folder := range folders {
		program := filepath.Join(folder, "unetmapd")
		if info, err := os.Stat(program); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return program, nil
		}
	}
	return "", errors.New("unetmapd is neither beside this program nor in the PATH (set UNETMAPD=/path/to/unetmapd)")
}

// A holder is this process as it is known to a daemon in the locks of rings, for all ports of that daemon.
type holder struct {
	id   uint32
	path string
	// Taken for each request.
	asking sync.Mutex
	conn   *net.UnixConn
	ports  int
}

var holders = struct {
	sync.Mutex
	known map[string]*holder
}{known: map[string]*holder{}}

// holderAt makes this process known to the daemon at a socket, unless it is.
func holderAt(path string) (*holder, error) {
	holders.Lock()
	defer holders.Unlock()
	if h := holders.known[path]; h != nil && h.isAlive() {
		h.ports++
		return h, nil
	}
	conn, err := connectTo(path)
	if err != nil {
		return nil, gone(err)
	}
	r, err := request(conn, kindLockHolder, nil)
	if err == nil && r.errno != 0 {
		err = &Error{path, r.errno, string(r.payload)}
	}
	if err == nil && r.holder == 0 {
		err = syscall.EPROTO
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	h := &holder{id: r.holder, path: path, conn: conn, ports: 1}
	holders.known[path] = h
	return h, nil
}

// isAlive says whether the daemon still has the connection.
func (h *holder) isAlive() bool {
	r, err := h.request(kindHello, nil)
	if err == nil {
		r.close()
	}
	return err == nil
}

func (h *holder) request(kind uint16, payload []byte) (*reply, error) {
	h.asking.Lock()
	defer h.asking.Unlock()
	return request(h.conn, kind, payload)
}

// release ends what the daemon knows of this process with its last port.
func (h *holder) release() {
	holders.Lock()
	defer holders.Unlock()
	if h.ports--; h.ports > 0 {
		return
	}
	if holders.known[h.path] == h {
		delete(holders.known, h.path)
	}
	_ = h.conn.Close()
}
