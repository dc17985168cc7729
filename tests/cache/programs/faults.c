/* A library to preload: makes system calls on files below one folder fail, or lie, at will.
 *
 * `fault_arm` says which call, how it fails, how many calls to let pass first and how many to spoil;
 * `fault_disarm` answers how many were really spoilt. Calls by other paths are never touched.
 *
 * A program that knows nothing of this is armed by a file, each of its processes for itself: beside
 * this library, with `.armed` behind its name, in three lines the folder, "call error lie pass spoil"
 * in numbers, and the file that each spoilt call adds a byte to.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, FSYNC, RENAME, LINK, UNLINK, MKDIR, CLOSE, UTIME };
enum { FAIL, SHORT, NOTHING, FLIP, ZERO };

static char root[4096];
static int armed, the_call, the_error, the_lie;
static long to_pass, to_spoil, spoilt;

void fault_arm(const char *folder, int call, int error, int lie, long pass, long spoil) {
    snprintf(root, sizeof root, "%s", folder);
    the_call = call, the_error = error, the_lie = lie;
    to_pass = pass, to_spoil = spoil, spoilt = 0;
    armed = 1;
}

long fault_disarm(void) {
    armed = 0;
    return spoilt;
}

void fault_pause(int paused) { armed = !paused; }

/* Not by variables: those do not reach the workers of a build. */
static char told[4096];

__attribute__((constructor)) static void arm_by_file(void) {
    static char folder[4096], how[256], place[4096];
    int call, error, lie;
    long pass, spoil;
    Dl_info own;
    if (!dladdr((void *)arm_by_file, &own) || !own.dli_fname) return;
    snprintf(place, sizeof place, "%s.armed", own.dli_fname);
    FILE *file = fopen(place, "r");
    if (!file) return;
    if (fgets(folder, sizeof folder, file) && fgets(how, sizeof how, file) &&
        fgets(told, sizeof told, file) &&
        sscanf(how, "%d %d %d %ld %ld", &call, &error, &lie, &pass, &spoil) == 5) {
        folder[strcspn(folder, "\n")] = told[strcspn(told, "\n")] = 0;
        fault_arm(folder, call, error, lie, pass, spoil);
    }
    fclose(file);
}

static void tell(void) {
    const char *path = told;
    if (!*path) return;
    long file = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file < 0) return;
    if (syscall(SYS_write, file, ".", 1) < 0) perror(path);
    syscall(SYS_close, file);
}

static int is_due(void) {
    if (to_pass > 0) {
        to_pass--;
        return 0;
    }
    if (to_spoil == 0) return 0;
    to_spoil--;
    spoilt++;
    tell();
    return 1;
}

static int by_path(int call, const char *path) {
    return armed && call == the_call && path && !strncmp(path, root, strlen(root)) && is_due();
}

/* Write the path that a descriptor was opened by; returns its length, or -1. */
static long path_of(int descriptor, char *path, size_t size) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    long length = syscall(SYS_readlink, link, path, size - 1);
    if (length >= 0) path[length] = 0;
    return length;
}

static int by_descriptor(int call, int descriptor) {
    char path[4096];
    if (!armed || call != the_call) return 0;
    return path_of(descriptor, path, sizeof path) >= 0 && by_path(call, path);
}

/* A name below an open folder. */
static int by_name(int call, int folder, const char *name) {
    char path[8192];
    if (!armed || call != the_call || !name) return 0;
    if (folder == AT_FDCWD || name[0] == '/') return by_path(call, name);
    long length = path_of(folder, path, 4096);
    if (length < 0) return 0;
    snprintf(path + length, sizeof path - length, "/%s", name);
    return by_path(call, path);
}

static int fail(void) {
    errno = the_error;
    return -1;
}

#define REAL(name) \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

#define OPENER(name) \
    int name(const char *path, int flags, ...) { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        return by_path(OPEN, path) ? fail() : real(path, flags, mode); \
    }
OPENER(open)
OPENER(open64)

#define OPENER_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        REAL(name); \
        mode_t mode = 0; \
        if (flags & (O_CREAT | __O_TMPFILE)) { \
            va_list rest; \
            va_start(rest, flags); \
            mode = va_arg(rest, mode_t); \
            va_end(rest); \
        } \
        return by_name(OPEN, folder, path) ? fail() : real(folder, path, flags, mode); \
    }
OPENER_AT(openat)
OPENER_AT(openat64)

DIR *opendir(const char *path) {
    REAL(opendir);
    if (!by_path(OPEN, path)) return real(path);
    errno = the_error;
    return NULL;
}

DIR *fdopendir(int descriptor) {
    REAL(fdopendir);
    if (!by_descriptor(OPEN, descriptor)) return real(descriptor);
    errno = the_error;
    return NULL;
}

static ssize_t after_read(unsigned char *data, ssize_t done) {
    if (the_lie == FLIP && done > 0) data[done / 2] ^= 4;
    if (the_lie == ZERO && done > 0) memset(data, 0, done);
    return the_lie == NOTHING ? 0 : done;
}

static size_t to_ask(size_t size) { return the_lie == SHORT && size > 1 ? size / 2 : size; }

ssize_t read(int descriptor, void *data, size_t size) {
    REAL(read);
    if (!by_descriptor(READ, descriptor)) return real(descriptor, data, size);
    if (the_lie == FAIL) return fail();
    return after_read(data, real(descriptor, data, to_ask(size)));
}

ssize_t pread64(int descriptor, void *data, size_t size, off64_t offset) {
    REAL(pread64);
    if (!by_descriptor(READ, descriptor)) return real(descriptor, data, size, offset);
    if (the_lie == FAIL) return fail();
    return after_read(data, real(descriptor, data, to_ask(size), offset));
}

/* What a lying write really writes: a copy with one bit changed, or zeros. */
static void *spoil(const void *data, size_t size) {
    unsigned char *copy = malloc(size + 1);
    memcpy(copy, data, size);
    if (the_lie == FLIP && size) copy[size / 2] ^= 4;
    if (the_lie == ZERO) memset(copy, 0, size);
    return copy;
}

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(write);
    if (!by_descriptor(WRITE, descriptor)) return real(descriptor, data, size);
    if (the_lie == FAIL) return fail();
    if (the_lie == NOTHING) return size;
    void *copy = spoil(data, size);
    ssize_t done = real(descriptor, copy, to_ask(size));
    free(copy);
    return done;
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset) {
    REAL(pwrite64);
    if (!by_descriptor(WRITE, descriptor)) return real(descriptor, data, size, offset);
    if (the_lie == FAIL) return fail();
    if (the_lie == NOTHING) return size;
    void *copy = spoil(data, size);
    ssize_t done = real(descriptor, copy, to_ask(size), offset);
    free(copy);
    return done;
}

static int spoilt_result(void) { return the_lie == FAIL ? fail() : 0; }

int fsync(int descriptor) {
    REAL(fsync);
    return by_descriptor(FSYNC, descriptor) ? spoilt_result() : real(descriptor);
}

int fdatasync(int descriptor) {
    REAL(fdatasync);
    return by_descriptor(FSYNC, descriptor) ? spoilt_result() : real(descriptor);
}

int rename(const char *from, const char *to) {
    REAL(rename);
    return by_path(RENAME, to) ? spoilt_result() : real(from, to);
}

int renameat(int source, const char *from, int target, const char *to) {
    REAL(renameat);
    return by_name(RENAME, target, to) ? spoilt_result() : real(source, from, target, to);
}

int link(const char *from, const char *to) {
    REAL(link);
    return by_path(LINK, to) ? spoilt_result() : real(from, to);
}

int linkat(int source, const char *from, int target, const char *to, int flags) {
    REAL(linkat);
    return by_name(LINK, target, to) ? spoilt_result() : real(source, from, target, to, flags);
}

int unlink(const char *path) {
    REAL(unlink);
    return by_path(UNLINK, path) ? spoilt_result() : real(path);
}

int unlinkat(int folder, const char *path, int flags) {
    REAL(unlinkat);
    return by_name(UNLINK, folder, path) ? spoilt_result() : real(folder, path, flags);
}

int mkdir(const char *path, mode_t mode) {
    REAL(mkdir);
    return by_path(MKDIR, path) ? spoilt_result() : real(path, mode);
}

int mkdirat(int folder, const char *path, mode_t mode) {
    REAL(mkdirat);
    return by_name(MKDIR, folder, path) ? spoilt_result() : real(folder, path, mode);
}

int close(int descriptor) {
    REAL(close);
    int due = by_descriptor(CLOSE, descriptor);
    int result = real(descriptor);
    return due ? fail() : result;
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    REAL(utimensat);
    return by_name(UTIME, folder, path) ? spoilt_result() : real(folder, path, times, flags);
}
