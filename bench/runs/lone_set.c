/* Records when a process sends and receives, writes to its disk, and learns of the end of a write.
 * Preloaded (LD_PRELOAD) into members by lone_set.py, which reads the records.
 *
 * Each process writes its own file in the folder that QUORATE_NOTES names. A record has four
 * numbers of eight bytes: begin and end of the call (nanoseconds of the monotonic clock), the kind of call,
 * and the number of bytes or writes. After ROOM calls nothing more is recorded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROOM (1 << 20)

enum { SENT = 1, RECEIVED, WRITTEN, HEARD };

typedef struct {
    int64_t began, ended, call, size;
} Note;

static Note *notes;
static atomic_uint used;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

__attribute__((constructor)) static void begin(void)
{
    char path[4096];
    const char *folder = getenv("QUORATE_NOTES");
    if (folder == NULL)
        return;
    snprintf(path, sizeof path, "%s/%d", folder, getpid());
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    void *found = MAP_FAILED;
    if (file >= 0 && ftruncate(file, ROOM * sizeof(Note)) == 0)
        found = mmap(NULL, ROOM * sizeof(Note), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED)
        perror(path); /* the reader will notice the missing file */
    else
        notes = found;
    if (file >= 0)
        close(file);
}

/* Record a call; the size of a failed call is -1. */
static long noted(int64_t began, int call, long size)
{
    unsigned place = notes == NULL ? ROOM : atomic_fetch_add(&used, 1);
    if (place < ROOM)
        notes[place] = (Note){began, now_ns(), call, size};
    return size;
}

/* The first call, not begin(), looks up the original functions: libraries that are
 * initialized before this one may call them. */
ssize_t send(int socket, const void *data, size_t length, int flags)
{
    static ssize_t (*next)(int, const void *, size_t, int);
    if (next == NULL)
        next = (ssize_t(*)(int, const void *, size_t, int))dlsym(RTLD_NEXT, "send");
    int64_t began = now_ns();
    return noted(began, SENT, next(socket, data, length, flags));
}

ssize_t recv(int socket, void *data, size_t length, int flags)
{
    static ssize_t (*next)(int, void *, size_t, int);
    if (next == NULL)
        next = (ssize_t(*)(int, void *, size_t, int))dlsym(RTLD_NEXT, "recv");
    int64_t began = now_ns();
    return noted(began, RECEIVED, next(socket, data, length, flags));
}

/* The journal's writer calls this on a thread of its own; the file has O_DSYNC. */
ssize_t pwrite64(int file, const void *data, size_t length, off64_t offset)
{
    static ssize_t (*next)(int, const void *, size_t, off64_t);
    if (next == NULL)
        next = (ssize_t(*)(int, const void *, size_t, off64_t))dlsym(RTLD_NEXT, "pwrite64");
    int64_t began = now_ns();
    return noted(began, WRITTEN, next(file, data, length, offset));
}

ssize_t pwrite(int file, const void *data, size_t length, off_t offset)
{
    return pwrite64(file, data, length, offset);
}

int eventfd_read(int file, eventfd_t *value)
{
    static int (*next)(int, eventfd_t *);
    if (next == NULL)
        next = (int (*)(int, eventfd_t *))dlsym(RTLD_NEXT, "eventfd_read");
    int64_t began = now_ns();
    int failed = next(file, value);
    noted(began, HEARD, failed ? -1 : 1);
    return failed;
}
