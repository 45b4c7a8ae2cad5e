/* A thread that writes to files, durably, and never needs the interpreter for it: see writer.py.
 *
 * One write at a time. Who asks and who waits for the outcome is one thread, that of the event loop; it
 * owns all fields but while a write is under way, when the other thread reads them and sets `error`.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    sem_t asked;          /* to write or, if nothing is under way, to end */
    atomic_int under_way; /* its change is what hands the fields over */
    int running, wake, file, error;
    off_t offset;
    PyObject *data; /* what is written, until its outcome is known */
    void *aligned;  /* the thread's, as is `room`, its size */
    size_t room;
} Writer;

/* Write all of it: the system may take a part only, when the disk is full. Returns an errno, 0 if done.
 * It is copied to where a file may be written from past the page cache. */
static int write_whole(Writer *self, const char *data, size_t length, off_t offset)
{
    int file = self->file;
    if (length == 0)
        return 0;
    if (length > self->room) {
        free(self->aligned);
        self->room = 0;
        if (posix_memalign(&self->aligned, sysconf(_SC_PAGESIZE), length)) {
            self->aligned = NULL;
            return ENOMEM;
        }
        self->room = length;
    }
    const char *at = memcpy(self->aligned, data, length);
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
    const uint64_t one = 1;
    for (;;) {
        while (sem_wait(&self->asked))
            ; /* a signal */
        if (!atomic_load(&self->under_way))
            return NULL;
        self->error = write_whole(self, PyBytes_AS_STRING(self->data), PyBytes_GET_SIZE(self->data), self->offset);
        atomic_store(&self->under_way, 0);
        if (write(self->wake, &one, sizeof one) < 0)
            abort(); /* an eventfd takes it unless it is none, and nobody would ever hear of the write */
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
        sem_post(&self->asked);
        Py_BEGIN_ALLOW_THREADS
        pthread_join(self->thread, NULL);
        Py_END_ALLOW_THREADS
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
    "quorate.storage._writer.SyncedWriter", sizeof(Writer), 0, Py_TPFLAGS_DEFAULT, type_slots,
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
    PyModuleDef_HEAD_INIT, "_writer", "See writer.py.", 0, NULL, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__writer(void)
{
    return PyModuleDef_Init(&module);
}
