/* Records when a process sends and receives, submits a write to its disk, and learns of its end.
 * Preloaded (LD_PRELOAD) into members by lone_set.py, which reads the records.
 *
 * Each process writes its own file in the folder that QUORATE_NOTES names. A record has four
 * numbers of eight bytes: begin and end of the call (nanoseconds of the monotonic clock), the kind of call,
 * and the number of bytes or writes. After ROOM calls nothing more is recorded.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ROOM (1 << 20)

enum { SENT = 1, RECEIVED, SUBMITTED, HEARD };

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

long syscall(long number, ...)
{
    static long (*next)(long, ...);
    va_list given;
    long at[6];
    va_start(given, number);
    for (int i = 0; i < 6; i++)
        at[i] = va_arg(given, long);
    va_end(given);
    if (next == NULL)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    int64_t began = now_ns();
    long result = next(number, at[0], at[1], at[2], at[3], at[4], at[5]);
    if (number == SYS_io_submit)
        noted(began, SUBMITTED, result);
    else if (number == SYS_io_getevents)
        noted(began, HEARD, result);
    return result;
}
