/* Waits for descriptors without going to sleep: see ready.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <sched.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <time.h>

#define AT_ONCE 64 /* what else is readable is found by the next call */
#define MOST_SECONDS 1.0

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

/* Look again and again until a time, and let others have the processor in between. The interpreter is
 * theirs all the while: a loop of Python's would keep it from the process's other threads. */
static int look_again(int epoll, struct epoll_event *found, int64_t end)
{
    for (;;) {
        int count = epoll_wait(epoll, found, AT_ONCE, 0); /* it does not wait, so no signal ends it */
        if (count != 0 || now_ns() >= end)
            return count;
        sched_yield();
    }
}

static PyObject *list_of(const struct epoll_event *found, int count)
{
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *pair = Py_BuildValue("iI", found[i].data.fd, found[i].events);
        if (pair == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, pair);
    }
    return list;
}

static PyObject *look_out(PyObject *Py_UNUSED(module), PyObject *args)
{
    int epoll, count;
    double seconds;
    int64_t took;
    struct epoll_event found[AT_ONCE];
    if (!PyArg_ParseTuple(args, "id", &epoll, &seconds))
        return NULL;
    if (!(seconds >= 0 && seconds <= MOST_SECONDS))
        return PyErr_Format(PyExc_ValueError, "expected 0 to 1 seconds");
    Py_BEGIN_ALLOW_THREADS
    int64_t began = now_ns();
    count = look_again(epoll, found, began + (int64_t)(seconds * 1e9));
    took = now_ns() - began; /* without the wait for the interpreter, which tells nothing of the processor */
    Py_END_ALLOW_THREADS
    if (count < 0)
        return PyErr_SetFromErrno(PyExc_OSError);
    return Py_BuildValue("Nd", list_of(found, count), took / 1e9);
}

static PyMethodDef methods[] = {
    {"look_out", look_out, METH_VARARGS, "look_out(epoll, seconds)\n--\n\nSee ready.py."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_ready", "See ready.py.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__ready(void)
{
    return PyModuleDef_Init(&module);
}
