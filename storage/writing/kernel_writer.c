/* Writes to files, durably, and never needs the interpreter for it: see writer.py.
 *
 * One write at a time. Who asks and who waits for the outcome is one thread, that of the event loop. What
 * goes past the page cache is given to the kernel (io_submit(2)), which tells the eventfd when it is
 * durable: nobody has to be woken for it in between. All else, and what the kernel does not take, or not
 * whole, is written by a thread. While that is at work it reads the fields and sets `error`; at all other
 * times they are the event loop's.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The kernel takes what is written past the page cache in some tens of microseconds. It may be held up, by
 * its own journal or a file system that writes at once, and the event loop with it: if it took longer
 * than this, the thread does the next writes. */
#define HELD_UP_NS 2000000
#define WARY_WRITES 64

/* To give one back takes the kernel tens of milliseconds, so the last one is kept for the next writer. */
static _Atomic aio_context_t spare;

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    sem_t asked;          /* to write or, if nothing is under way, to end */
    atomic_int under_way; /* in the thread; its change is what hands the fields over */
    int running, wake, file, error;
    off_t offset;
    PyObject *data;        /* what is written, until its outcome is known */
    char *aligned;         /* a copy of it, where a file may be written from past the page cache */
    size_t room;           /* for the copy */
    aio_context_t context; /* 0 if the kernel has none for us */
    int submitted;         /* to the kernel, which has not told yet what became of it */
    int wary;              /* so many writes are the thread's */
} Writer;

/* Copy what is to be written. Returns an errno, 0 if done. */
static int copy(Writer *self)
{
    size_t length = PyBytes_GET_SIZE(self->data);
    if (length == 0)
        return 0;
    if (length > self->room) {
        void *aligned;
        free(self->aligned);
        self->aligned = NULL;
        self->room = 0;
        if (posix_memalign(&aligned, sysconf(_SC_PAGESIZE), length))
            return ENOMEM;
        self->aligned = aligned;
        self->room = length;
    }
    memcpy(self->aligned, PyBytes_AS_STRING(self->data), length);
    return 0;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Give it to the kernel, if it takes it. */
static int submit(Writer *self)
{
    if (self->context == 0 || !(fcntl(self->file, F_GETFL) & O_DIRECT))
        return 0;
    if (self->wary > 0) {
        self->wary--;
        return 0;
    }
    struct iocb request = {
        .aio_lio_opcode = IOCB_CMD_PWRITE,
        .aio_fildes = self->file,
        .aio_buf = (uintptr_t)self->aligned,
        .aio_nbytes = PyBytes_GET_SIZE(self->data),
        .aio_offset = self->offset,
        .aio_flags = IOCB_FLAG_RESFD,
        .aio_resfd = self->wake,
    };
    struct iocb *requests = &request;
    int64_t began = now_ns();
    int taken = syscall(SYS_io_submit, self->context, 1, &requests) == 1;
    if (now_ns() - began > HELD_UP_NS)
        self->wary = WARY_WRITES;
    return taken;
}

/* Tell who waits for the outcome. */
static void wake_up(Writer *self)
{
    const uint64_t one = 1;
    if (write(self->wake, &one, sizeof one) < 0)
        abort(); /* an eventfd takes it unless it is none, and nobody would ever hear of the write */
}

/* Have the thread write it. */
static void hand_over(Writer *self)
{
    atomic_store(&self->under_way, 1);
    sem_post(&self->asked);
}

/* Hear what became of what was submitted, if it is over, or wait until it is. */
static void reap(Writer *self, int wait)
{
    struct io_event event;
    struct timespec none = {0, 0};
    long count;
    do
        count = syscall(SYS_io_getevents, self->context, wait, 1, &event, wait ? NULL : &none);
    while (count < 0 && errno == EINTR);
    if (count < 0)
        abort(); /* nobody would ever hear of the write */
    if (count == 0)
        return;
    self->submitted = 0;
    self->error = event.res < 0 ? (int)-event.res : 0;
    int cut_short = event.res >= 0 && event.res < PyBytes_GET_SIZE(self->data);
    if (cut_short || self->error == EAGAIN || self->error == EINTR)
        hand_over(self); /* all of it once more, to go on from there or to learn why */
}

/* Write all of the copy: the system may take a part only, when the disk is full. Returns an errno, 0 if
 * done. */
static int write_whole(Writer *self)
{
    size_t length = PyBytes_GET_SIZE(self->data);
    const char *at = self->aligned;
    off_t offset = self->offset;
    int file = self->file;
    while (length > 0) {
        ssize_t done = pwrite(file, at, length, offset);
        if (done < 0 && errno != EINTR)
            return errno;
        if (done > 0) {
            at += done;
            length -= done;
            offset += done;
        }
    }
    return 0;
}

static void *work(void *argument)
{
    Writer *self = argument;
    for (;;) {
        while (sem_wait(&self->asked))
            ; /* a signal */
        if (!atomic_load(&self->under_way))
            return NULL;
        self->error = write_whole(self);
        atomic_store(&self->under_way, 0);
        wake_up(self);
    }
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"wake", NULL};
    int wake, error;
    sigset_t all, before;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i", names, &wake))
        return NULL;
    Writer *self = (Writer *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->wake = wake;
    sem_init(&self->asked, 0, 0);
    sigfillset(&all); /* signals are for the interpreter's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(&self->thread, NULL, work, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->running = error == 0;
    if (error) {
        Py_DECREF(self);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->context = atomic_exchange(&spare, 0);
    if (self->context == 0 && syscall(SYS_io_setup, 1, &self->context))
        self->context = 0; /* it has no more of them, or is not to have any */
    return (PyObject *)self;
}

static PyObject *writer_write(Writer *self, PyObject *args)
{
    int file;
    long long offset;
    PyObject *data;
    if (!PyArg_ParseTuple(args, "iLS", &file, &offset, &data))
        return NULL;
    if (!self->running || self->data != NULL)
        return PyErr_Format(PyExc_RuntimeError, "the writer is %s", self->running ? "at work" : "closed");
    self->file = file;
    self->offset = offset;
    self->data = Py_NewRef(data);
    self->error = copy(self);
    if (self->error) {
        wake_up(self);
        Py_RETURN_NONE;
    }
    self->submitted = submit(self);
    if (!self->submitted)
        hand_over(self);
    Py_RETURN_NONE;
}

static PyObject *writer_outcome(Writer *self, PyObject *Py_UNUSED(ignored))
{
    if (self->submitted)
        reap(self, 0);
    if (self->data == NULL || self->submitted || atomic_load(&self->under_way))
        Py_RETURN_NONE;
    Py_CLEAR(self->data);
    return PyLong_FromLong(self->error);
}

static PyObject *writer_close(Writer *self, PyObject *Py_UNUSED(ignored))
{
    if (self->running) {
        self->running = 0;
        Py_BEGIN_ALLOW_THREADS
        if (self->submitted)
            reap(self, 1);
        sem_post(&self->asked);
        pthread_join(self->thread, NULL);
        aio_context_t other = atomic_exchange(&spare, self->context);
        if (other != 0)
            syscall(SYS_io_destroy, other);
        Py_END_ALLOW_THREADS
        self->context = 0;
    }
    Py_RETURN_NONE;
}

static void writer_dealloc(Writer *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(writer_close(self, NULL));
    sem_destroy(&self->asked);
    Py_CLEAR(self->data);
    free(self->aligned);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"write", (PyCFunction)writer_write, METH_VARARGS, "write(file, offset, data)\n--\n\nSee writer.py."},
    {"outcome", (PyCFunction)writer_outcome, METH_NOARGS, "outcome()\n--\n\nSee writer.py."},
    {"close", (PyCFunction)writer_close, METH_NOARGS, "close()\n--\n\nSee writer.py."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, "SyncedWriter(wake)\n--\n\nSee writer.py."},
    {Py_tp_new, writer_new},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec type_spec = {
    "quorate.storage.writing._kernel_writer.SyncedWriter", sizeof(Writer), 0, Py_TPFLAGS_DEFAULT, type_slots,
};

static int prepare(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&type_spec);
    int failed = type == NULL ? -1 : PyModule_AddObjectRef(module, "SyncedWriter", type);
    Py_XDECREF(type);
    return failed;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_kernel_writer", "See kernel_writer.py.", 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__kernel_writer(void)
{
    return PyModuleDef_Init(&module);
}
