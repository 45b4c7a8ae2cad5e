/* Makes the disk of one process slow, on demand. Preloaded (LD_PRELOAD) into a member by
 * `quorate torture`; see disk.py.
 *
 * Before each sync, and each write that syncs (O_DSYNC), it reads a number of milliseconds from the
 * file that QUORATE_SLOW_DISK names, and waits that long. Without that file it does not wait. Then
 * it performs the sync as requested, so durability does not change.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static long asked_ms(void)
{
    const char *path = getenv("QUORATE_SLOW_DISK");
    FILE *file = path ? fopen(path, "re") : NULL;
    long ms = 0;
    if (file) {
        if (fscanf(file, "%ld", &ms) != 1)
            ms = 0;
        fclose(file);
    }
    return ms;
}

static void wait_for_the_disk(void)
{
    int saved = errno;
    long ms = asked_ms();
    if (ms > 0) {
        struct timespec left = {ms / 1000, ms % 1000 * 1000000};
        while (nanosleep(&left, &left) == -1 && errno == EINTR)
            ;
    }
    errno = saved;
}

int fsync(int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    wait_for_the_disk();
    return next(fd);
}

int fdatasync(int fd)
{
    int (*next)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for_the_disk();
    return next(fd);
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset)
{
    ssize_t (*next)(int, const void *, size_t, off_t) =
        (ssize_t (*)(int, const void *, size_t, off_t))dlsym(RTLD_NEXT, "pwrite");
    if (fcntl(fd, F_GETFL) & O_DSYNC)
        wait_for_the_disk();
    return next(fd, data, length, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset)
{
    return pwrite(fd, data, length, offset);
}

int msync(void *start, size_t length, int flags)
{
    int (*next)(void *, size_t, int) = (int (*)(void *, size_t, int))dlsym(RTLD_NEXT, "msync");
    if (flags & MS_SYNC)
        wait_for_the_disk();
    return next(start, length, flags);
}
