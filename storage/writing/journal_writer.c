/* Writes to the journal durably, on a thread that never needs the interpreter. journal_writer.py says why,
 * specifies the type, and holds its twin in Python; a change of either side needs a new ABI number in both.
 *
 * One write at a time. The event loop's thread starts a write and asks for its outcome. `under_way` hands
 * the fields over: while it is set they belong to the writer's thread, otherwise to the event loop's.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stddef.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define ABI 2

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    pid_t owner;          /* the process that has the thread: a forked child has none */
    sem_t asked;          /* to write or, if nothing is under way, to end */
    atomic_int under_way; /* in the thread */
    int running, wake, file, error;
    off_t offset;
    PyObject *data; /* what is written, until its outcome was returned */
    char *aligned;  /* a copy of it: a write past the page cache needs whole pages */
    size_t room;    /* for the copy */
    double took;    /* seconds of the last write */
} Writer;

/* Copy what is to be written. Returns an errno, 0 if done. */
static int copy(Writer *self)
{
    size_t length = PyBytes_GET_SIZE(self->data);
    if (length > self->room) {
        void *aligned;
        if (posix_memalign(&aligned, sysconf(_SC_PAGESIZE), length))
            return ENOMEM;
        free(self->aligned);
        self->aligned = aligned;
        self->room = length;
    }
    if (length > 0)
        memcpy(self->aligned, PyBytes_AS_STRING(self->data), length);
    return 0;
}

/* Write all of the copy: the system may take a part only, if the disk is full. Returns an errno, 0 if
 * done. */
static int write_whole(Writer *self)
{
    size_t length = PyBytes_GET_SIZE(self->data), at = 0;
    while (at < length) {
        ssize_t done = pwrite(self->file, self->aligned + at, length - at, self->offset + (off_t)at);
        if (done < 0 && errno != EINTR)
            return errno;
        if (done > 0)
            at += done;
    }
    return 0;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void *work(void *argument)
{
    static const uint64_t one = 1;
    Writer *self = argument;
    for (;;) {
        while (sem_wait(&self->asked))
            ; /* interrupted by a signal */
        if (!atomic_load(&self->under_way))
            return NULL;
        int wake = self->wake;
        double began = now(); /* here: the event loop may hear of the end much later */
        self->error = write_whole(self);
        self->took = now() - began;
        atomic_store(&self->under_way, 0);
        if (write(wake, &one, sizeof one) < 0)
            continue; /* the owner has closed the eventfd: nobody waits, and outcome() has the error */
    }
}

static PyObject *writer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"wake", NULL};
    int wake;
    sigset_t all, before;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i", names, &wake))
        return NULL;
    Writer *self = (Writer *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->wake = wake;
    self->owner = getpid();
    sem_init(&self->asked, 0, 0);
    sigfillset(&all); /* signals are for the interpreter's threads */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&self->thread, NULL, work, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    self->running = error == 0;
    if (error) {
        Py_DECREF(self);
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return (PyObject *)self;
}

static PyObject *writer_write(Writer *self, PyObject *args)
{
    int file;
    long long offset;
    PyObject *data;
    if (!PyArg_ParseTuple(args, "iLS", &file, &offset, &data))
        return NULL;
    if (self->owner != getpid())
        return PyErr_Format(PyExc_RuntimeError, "the writer belongs to process %d", (int)self->owner);
    if (!self->running || self->data != NULL)
        return PyErr_Format(PyExc_RuntimeError, "the writer is %s", self->running ? "at work" : "closed");
    self->file = file;
    self->offset = offset;
    self->data = Py_NewRef(data);
    self->error = copy(self);
    if (self->error) { /* an outcome like that of any failed write; its owner must hear of it likewise */
        static const uint64_t one = 1;
        if (write(self->wake, &one, sizeof one) < 0)
            return PyErr_SetFromErrno(PyExc_OSError);
        Py_RETURN_NONE;
    }
    atomic_store(&self->under_way, 1);
    sem_post(&self->asked);
    Py_RETURN_NONE;
}

static PyObject *writer_outcome(Writer *self, PyObject *Py_UNUSED(ignored))
{
    if (self->data == NULL || atomic_load(&self->under_way))
        Py_RETURN_NONE;
    Py_CLEAR(self->data);
    return PyLong_FromLong(self->error);
}

static PyObject *writer_close(Writer *self, PyObject *Py_UNUSED(ignored))
{
    if (self->running) {
        self->running = 0;
        if (self->owner == getpid()) { /* to join a thread of the parent would never end */
            Py_BEGIN_ALLOW_THREADS
            sem_post(&self->asked);
            pthread_join(self->thread, NULL);
            Py_END_ALLOW_THREADS
        }
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
    {"write", (PyCFunction)writer_write, METH_VARARGS, "write(file, offset, data)\n--\n\nSee journal_writer.py."},
    {"outcome", (PyCFunction)writer_outcome, METH_NOARGS, "outcome()\n--\n\nSee journal_writer.py."},
    {"close", (PyCFunction)writer_close, METH_NOARGS, "close()\n--\n\nSee journal_writer.py."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"took", T_DOUBLE, offsetof(Writer, took), READONLY, "seconds of the write whose outcome came last"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_doc, "Writer(wake)\n--\n\nSee journal_writer.py."},
    {Py_tp_new, writer_new},
    {Py_tp_dealloc, writer_dealloc},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec type_spec = {
    "quorate.storage.writing._journal_writer.Writer", sizeof(Writer), 0, Py_TPFLAGS_DEFAULT, type_slots,
};

static int prepare(PyObject *module)
{
    PyObject *type = PyType_FromSpec(&type_spec);
    int failed = type == NULL ? -1 : PyModule_AddObjectRef(module, "Writer", type);
    Py_XDECREF(type);
    return failed ? failed : PyModule_AddIntConstant(module, "ABI", ABI);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_journal_writer", "See journal_writer.py.", 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__journal_writer(void)
{
    return PyModuleDef_Init(&module);
}
