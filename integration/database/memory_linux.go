package database

import "syscall"

// inMemory returns an in-memory directory with enough space for a server, or "".
func inMemory() string {
	const dir, room = "/dev/shm", 4 << 30
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Bavail*uint64(fs.Bsize) < room {
		return ""
	}
	return dir
}
