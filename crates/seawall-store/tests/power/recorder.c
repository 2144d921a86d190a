// Records what a process does to the files of one folder: loaded before the C library (LD_PRELOAD), it stands in front of the calls that
// write, cut, sync, make, rename and remove files. SQLite and Rust both go through them. Written after each call returned, and for a sync
// before and after, so that what is recorded before the beginning of a sync had been written when the sync began.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { CREATE = 1, WRITE, ZEROS, TRUNCATE, SYNC_BEGINS, SYNC_ENDS, UNLINK, RENAME, FOLDER_BEGINS, FOLDER_ENDS, UNKNOWN };

struct head {
  uint32_t kind, thread;
  uint64_t file, at, length;
};

static int out = -1;
static char folder[2048];
static size_t folder_length;

__attribute__((constructor)) static void start(void) {
  const char *recording = getenv("SEAWALL_RECORDING"), *recorded = getenv("SEAWALL_RECORDED_FOLDER");
  if (!recording || !recorded || strlen(recorded) >= sizeof folder)
    return;
  strcpy(folder, recorded);
  folder_length = strlen(folder);
  out = (int)syscall(SYS_openat, AT_FDCWD, recording, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
}

// One append, which the system does not mix with another thread's.
static void record(enum kind kind, uint64_t file, uint64_t at, const void *data, size_t length, size_t stored) {
  int before = errno;
  struct head head = {kind, (uint32_t)syscall(SYS_gettid), file, at, length};
  struct iovec parts[] = {{&head, sizeof head}, {(void *)data, stored}};
  if (syscall(SYS_writev, out, parts, stored ? 2 : 1) != (ssize_t)(sizeof head + stored))
    abort();
  errno = before;
}

// The name within the folder, or nothing: "" is the folder itself.
static const char *within(const char *path) {
  if (out < 0 || strncmp(path, folder, folder_length))
    return NULL;
  if (!path[folder_length])
    return "";
  return path[folder_length] == '/' ? path + folder_length + 1 : NULL;
}

static int is_recorded(int fd, struct stat *found) {
  char link[64], path[4096];
  int before = errno;
  if (out < 0)
    return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length > 0)
    path[length] = 0;
  int is = length > 0 && within(path) && !fstat(fd, found);
  errno = before;
  return is;
}

static void wrote(int fd, const char *data, ssize_t length, int64_t at) {
  struct stat file;
  if (length <= 0 || !is_recorded(fd, &file))
    return;
  int zeros = !data[0] && !memcmp(data, data + 1, (size_t)length - 1);
  record(zeros ? ZEROS : WRITE, file.st_ino, (uint64_t)at, data, (size_t)length, zeros ? 0 : (size_t)length);
}

static int opened(int at, const char *path, int flags, mode_t mode) {
  const char *name = at == AT_FDCWD ? within(path) : NULL;
  struct stat file;
  int was_there = name && !stat(path, &file);
  int fd = (int)syscall(SYS_openat, at, path, flags, mode);
  if (fd < 0 || !name || fstat(fd, &file))
    return fd;
  if (!was_there && S_ISREG(file.st_mode))
    record(CREATE, file.st_ino, 0, name, strlen(name), strlen(name));
  else if (flags & O_TRUNC)
    record(TRUNCATE, file.st_ino, 0, NULL, 0, 0);
  return fd;
}

#define MODE(flags) \
  mode_t mode = 0; \
  if (flags & O_CREAT) { \
    va_list rest; \
    va_start(rest, flags); \
    mode = va_arg(rest, mode_t); \
    va_end(rest); \
  }

int open(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return opened(at, path, flags, mode); }

ssize_t write(int fd, const void *data, size_t length) {
  int64_t at = out < 0 ? 0 : (int64_t)syscall(SYS_lseek, fd, 0, SEEK_CUR);
  ssize_t written = syscall(SYS_write, fd, data, length);
  wrote(fd, data, written, at);
  return written;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t at) {
  ssize_t written = syscall(SYS_pwrite64, fd, data, length, at);
  wrote(fd, data, written, at);
  return written;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t at) { return pwrite64(fd, data, length, at); }

int ftruncate64(int fd, off64_t length) {
  struct stat file;
  int result = (int)syscall(SYS_ftruncate, fd, length);
  if (!result && is_recorded(fd, &file))
    record(TRUNCATE, file.st_ino, 0, NULL, (size_t)length, 0);
  return result;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

static int synced(int fd, long call) {
  struct stat file;
  int is = is_recorded(fd, &file), is_folder = is && S_ISDIR(file.st_mode);
  if (is)
    record(is_folder ? FOLDER_BEGINS : SYNC_BEGINS, file.st_ino, 0, NULL, 0, 0);
  int result = (int)syscall(call, fd);
  if (is && !result)
    record(is_folder ? FOLDER_ENDS : SYNC_ENDS, file.st_ino, 0, NULL, 0, 0);
  return result;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int unlink(const char *path) {
  int result = (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  const char *name = within(path);
  if (!result && name)
    record(UNLINK, 0, 0, name, strlen(name), strlen(name));
  return result;
}

int rename(const char *from, const char *to) {
  int result = (int)syscall(SYS_renameat, AT_FDCWD, from, AT_FDCWD, to);
  const char *old = within(from), *new = within(to);
  if (!result && (old || new)) {
    char both[4096];
    int length = snprintf(both, sizeof both, "%s\n%s", old ? old : "", new ? new : "");
    record(old && new ? RENAME : UNKNOWN, 0, 0, both, (size_t)length, (size_t)length);
  }
  return result;
}

// What nobody uses: it would be missed.
static void unknown(int fd) {
  struct stat file;
  if (is_recorded(fd, &file))
    record(UNKNOWN, file.st_ino, 0, NULL, 0, 0);
}

int fallocate64(int fd, int mode, off64_t at, off64_t length) { return unknown(fd), (int)syscall(SYS_fallocate, fd, mode, at, length); }
int fallocate(int fd, int mode, off_t at, off_t length) { return fallocate64(fd, mode, at, length); }
int posix_fallocate64(int fd, off64_t at, off64_t length) { return fallocate64(fd, 0, at, length) ? errno : 0; }
int posix_fallocate(int fd, off_t at, off_t length) { return posix_fallocate64(fd, at, length); }
ssize_t writev(int fd, const struct iovec *parts, int many) { return unknown(fd), syscall(SYS_writev, fd, parts, many); }
