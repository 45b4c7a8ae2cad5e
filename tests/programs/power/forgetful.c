/* Writes down what a process does to the files below one directory, in the order in which it is
 * done, so that it can be told afterwards what a loss of power at any moment would have left.
 * Preloaded (LD_PRELOAD); see journal.py, which reads it. Everything is also done as asked.
 *
 *   FORGETFUL_ROOT     the directory (as its real path)
 *   FORGETFUL_JOURNAL  the file that is appended to
 *   FORGETFUL_MARK_FD  what is written to this descriptor is written down as well, as a mark
 *
 * A record: kind (1 byte), inode or 0 (8), first number (8), second number (8), length of data (4),
 * all little-endian, and the data.
 *
 *   C  a file was made        inode, -, -, path
 *   K  a directory was made   inode, -, -, path
 *   W  about to be written    inode, offset, 1 = a sync of its own follows (O_DSYNC), bytes
 *   T  about to be cut        inode, length, -
 *   R  about to be renamed    0, -, -, path NUL path
 *   U  about to be removed    0, -, -, path
 *   S  synced                 inode, number of records before the sync began, -
 *   Y  synced, one write      inode, number of the record of that write, -
 *   M  about to be told       0, -, -, bytes
 *
 * "About to": whether it happens before the power goes is anybody's guess. "Synced" is written
 * after the kernel has said so. Paths are relative to the directory. What is written through a
 * mapping is not seen; the tests compare the journal with the files, to see that nothing was.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MAX_FDS 65536
#define REAL(name) ((__typeof__(&name))real(#name))

struct tracked {
    uint64_t inode; /* 0 = none of ours */
    int sync;       /* opened with O_DSYNC or O_SYNC */
};

static struct tracked tracked[MAX_FDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t records;
static int journal = -2, mark_fd = -1;
static char root[PATH_MAX];

static void *real(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (!found)
        abort();
    return found;
}

static void begin(void)
{
    const char *where = getenv("FORGETFUL_ROOT"), *path = getenv("FORGETFUL_JOURNAL");
    const char *mark = getenv("FORGETFUL_MARK_FD");
    journal = -1;
    if (!where || !path || !realpath(where, root))
        return;
    journal = REAL(open)(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (mark)
        mark_fd = atoi(mark);
}

/* Append one record; returns its number. */
static uint64_t note(char kind, uint64_t inode, uint64_t one, uint64_t two, const struct iovec *data,
                     int count)
{
    char head[29];
    struct iovec parts[IOV_MAX];
    uint32_t length = 0;
    uint64_t number;
    int saved = errno;
    for (int i = 0; i < count; i++) {
        parts[i + 1] = data[i];
        length += data[i].iov_len;
    }
    head[0] = kind;
    memcpy(head + 1, &inode, 8);
    memcpy(head + 9, &one, 8);
    memcpy(head + 17, &two, 8);
    memcpy(head + 25, &length, 4);
    parts[0] = (struct iovec){head, sizeof head};
    pthread_mutex_lock(&lock);
    number = records++;
    if (REAL(writev)(journal, parts, count + 1) != (ssize_t)(length + sizeof head))
        abort(); /* a journal with a hole would tell lies */
    pthread_mutex_unlock(&lock);
    errno = saved;
    return number;
}

static void note_text(char kind, uint64_t inode, const char *one, const char *two)
{
    struct iovec data[3] = {{(void *)one, strlen(one)}, {(void *)"", 1}, {(void *)two, two ? strlen(two) : 0}};
    note(kind, inode, 0, 0, data, two ? 3 : 1);
}

/* The path below the root, in a buffer; NULL if it is elsewhere. The last part need not exist. */
static const char *inside(const char *path, char *buffer)
{
    char copy[PATH_MAX], parent[PATH_MAX];
    const char *base;
    size_t length;
    int saved = errno;
    if (journal == -2)
        begin();
    if (journal < 0 || strlen(path) >= PATH_MAX)
        return NULL;
    strcpy(copy, path);
    base = strrchr(path, '/');
    if (base)
        copy[base == path ? 1 : base - path] = 0;
    else
        strcpy(copy, ".");
    base = base ? base + 1 : path;
    if (!realpath(copy, parent)) {
        errno = saved;
        return NULL;
    }
    if (snprintf(buffer, PATH_MAX, "%s/%s", parent, base) >= PATH_MAX)
        return NULL;
    length = strlen(root);
    if (strncmp(buffer, root, length) || (buffer[length] != '/' && buffer[length]))
        return NULL;
    return buffer[length] ? buffer + length + 1 : ".";
}

static int follow(int fd, const char *path, int flags, int is_new)
{
    struct stat found;
    if (fd < 0 || fd >= MAX_FDS || fstat(fd, &found))
        return fd;
    tracked[fd] = (struct tracked){found.st_ino, flags & (O_DSYNC | O_SYNC)};
    if (is_new)
        note_text('C', found.st_ino, path, NULL);
    else if (flags & O_TRUNC)
        note('T', found.st_ino, 0, 0, NULL, 0);
    return fd;
}

static int opened(int (*next)(const char *, int, ...), const char *path, int flags, mode_t mode)
{
    char buffer[PATH_MAX];
    struct stat before;
    const char *name = inside(path, buffer);
    int saved = errno;
    int is_new = name && (flags & O_CREAT) && stat(path, &before);
    errno = saved;
    return name ? follow(next(path, flags, mode), name, flags, is_new) : next(path, flags, mode);
}

#define MODE                                                                                       \
    va_list rest;                                                                                  \
    va_start(rest, flags);                                                                         \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;                        \
    va_end(rest)

int open(const char *path, int flags, ...)
{
    MODE;
    return opened(REAL(open), path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    MODE;
    return opened(REAL(open64), path, flags, mode);
}

int openat(int at, const char *path, int flags, ...)
{
    MODE;
    if (at == AT_FDCWD || path[0] == '/')
        return opened(REAL(open), path, flags, mode);
    return REAL(openat)(at, path, flags, mode);
}

int openat64(int at, const char *path, int flags, ...)
{
    MODE;
    if (at == AT_FDCWD || path[0] == '/')
        return opened(REAL(open), path, flags, mode);
    return REAL(openat)(at, path, flags, mode);
}

int close(int fd)
{
    if (fd >= 0 && fd < MAX_FDS)
        tracked[fd].inode = 0;
    return REAL(close)(fd);
}

static int ours(int fd)
{
    return fd >= 0 && fd < MAX_FDS && tracked[fd].inode;
}

/* Do a write of parts at an offset, -1 = where the file stands. */
static ssize_t written(int fd, const struct iovec *parts, int count, off_t offset, ssize_t (*next)(int, const struct iovec *, int, off_t))
{
    uint64_t at = offset, number;
    ssize_t done;
    if (offset < 0) {
        int end = fcntl(fd, F_GETFL) & O_APPEND;
        struct stat found;
        at = end && !fstat(fd, &found) ? (uint64_t)found.st_size : (uint64_t)lseek(fd, 0, SEEK_CUR);
    }
    number = note('W', tracked[fd].inode, at, tracked[fd].sync != 0, parts, count);
    done = next(fd, parts, count, offset);
    if (done >= 0 && tracked[fd].sync)
        note('Y', tracked[fd].inode, number, 0, NULL, 0);
    return done;
}

static ssize_t next_here(int fd, const struct iovec *parts, int count, off_t offset)
{
    (void)offset;
    return REAL(writev)(fd, parts, count);
}

static ssize_t next_there(int fd, const struct iovec *parts, int count, off_t offset)
{
    return REAL(pwritev)(fd, parts, count, offset);
}

ssize_t write(int fd, const void *data, size_t length)
{
    struct iovec part = {(void *)data, length};
    if (fd == mark_fd && journal >= 0)
        note('M', 0, 0, 0, &part, 1);
    return ours(fd) ? written(fd, &part, 1, -1, next_here) : REAL(write)(fd, data, length);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    return ours(fd) ? written(fd, parts, count, -1, next_here) : REAL(writev)(fd, parts, count);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset)
{
    struct iovec part = {(void *)data, length};
    return ours(fd) ? written(fd, &part, 1, offset, next_there)
                    : REAL(pwrite)(fd, data, length, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset)
{
    return pwrite(fd, data, length, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    return ours(fd) ? written(fd, parts, count, offset, next_there)
                    : REAL(pwritev)(fd, parts, count, offset);
}

ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset)
{
    return pwritev(fd, parts, count, offset);
}

int ftruncate(int fd, off_t length)
{
    if (ours(fd))
        note('T', tracked[fd].inode, length, 0, NULL, 0);
    return REAL(ftruncate)(fd, length);
}

int ftruncate64(int fd, off64_t length)
{
    return ftruncate(fd, length);
}

static int synced(int fd, int (*next)(int))
{
    uint64_t before = __atomic_load_n(&records, __ATOMIC_SEQ_CST);
    int failed = next(fd);
    if (!failed && ours(fd))
        note('S', tracked[fd].inode, before, 0, NULL, 0);
    return failed;
}

int fsync(int fd)
{
    return synced(fd, REAL(fsync));
}

int fdatasync(int fd)
{
    return synced(fd, REAL(fdatasync));
}

int mkdir(const char *path, mode_t mode)
{
    char buffer[PATH_MAX];
    const char *name = inside(path, buffer);
    struct stat found;
    int failed = REAL(mkdir)(path, mode);
    if (!failed && name && !stat(path, &found))
        note_text('K', found.st_ino, name, NULL);
    return failed;
}

int rename(const char *from, const char *to)
{
    char one[PATH_MAX], two[PATH_MAX];
    const char *old = inside(from, one), *new = inside(to, two);
    if (old && new)
        note_text('R', 0, old, new);
    return REAL(rename)(from, to);
}

int unlink(const char *path)
{
    char buffer[PATH_MAX];
    const char *name = inside(path, buffer);
    struct stat found;
    if (name && !lstat(path, &found))
        note_text('U', 0, name, NULL);
    return REAL(unlink)(path);
}
