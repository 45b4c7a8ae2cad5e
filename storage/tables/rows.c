/* Rows of the tables, in the usual case: what a flush writes, and what a snapshot reads. See tables_rows.py. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

enum {
    HEAD_BYTES = 17, /* tag, expiry, revision */
    SUM_BYTES = 4,
    RECORD_FIELDS = 4,
    HASHED_BYTES = 480, /* keys from here on, and the empty one, are stored hashed */
    LARGE_BYTES = 4096, /* values from here on are left: to copy many would take long, and nobody can interrupt it */
    AT_ONCE = 64,
    LINE_BYTES = 64, /* of the processor's cache */
    LINES = 5,
};

static void put_number(char *at, unsigned long long number, int bytes)
{
    for (int n = 0; n < bytes; n++)
        at[n] = (char)(number >> 8 * n);
}

/* Write tag, expiry and revision; -1 with an exception if one is not in its range. */
static int put_head(char *at, PyObject *record)
{
    unsigned long long expiry = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(record, 1));
    if (expiry == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    unsigned long long revision = PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(record, 2));
    if (revision == (unsigned long long)-1 && PyErr_Occurred())
        return -1;
    long tag = PyLong_AsLong(PyTuple_GET_ITEM(record, 3));
    if (tag == -1 && PyErr_Occurred())
        return -1;
    if (tag < 0 || tag > 255) {
        PyErr_Format(PyExc_OverflowError, "tag of a record is %ld, expected 0 to 255", tag);
        return -1;
    }
    at[0] = (char)tag;
    put_number(at + 1, expiry, 8);
    put_number(at + 9, revision, 8);
    return 0;
}

/* The checksum of key, head and value, by the function that all of the store has them from; -1 with
 * an exception. */
static long long sum_up(PyObject *checksum, PyObject *key, const char *head, const char *value,
                        Py_ssize_t value_bytes)
{
    Py_ssize_t key_bytes = PyBytes_GET_SIZE(key);
    PyObject *whole = PyBytes_FromStringAndSize(NULL, key_bytes + HEAD_BYTES + value_bytes);
    if (whole == NULL)
        return -1;
    char *at = PyBytes_AS_STRING(whole);
    memcpy(at, PyBytes_AS_STRING(key), key_bytes);
    memcpy(at + key_bytes, head, HEAD_BYTES);
    memcpy(at + key_bytes + HEAD_BYTES, value, value_bytes);
    PyObject *number = PyObject_CallOneArg(checksum, whole);
    long long sum = number == NULL ? -1 : PyLong_AsLongLong(number);
    Py_DECREF(whole);
    Py_XDECREF(number);
    if (!PyErr_Occurred() && (sum < 0 || sum > UINT32_MAX))
        PyErr_Format(PyExc_OverflowError, "a checksum is %lld, expected 32 bits", sum);
    return PyErr_Occurred() ? -1 : sum;
}

static PyObject *encode(PyObject *key, PyObject *record, PyObject *checksum)
{
    char head[HEAD_BYTES];
    if (put_head(head, record))
        return NULL;
    PyObject *value = PyTuple_GET_ITEM(record, 0);
    long long sum = sum_up(checksum, key, head, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
    if (sum == -1)
        return NULL;
    PyObject *row = PyBytes_FromStringAndSize(NULL, HEAD_BYTES + SUM_BYTES + PyBytes_GET_SIZE(value));
    if (row == NULL)
        return NULL;
    char *at = PyBytes_AS_STRING(row);
    memcpy(at, head, HEAD_BYTES);
    put_number(at + HEAD_BYTES, (unsigned long long)sum, SUM_BYTES);
    memcpy(at + HEAD_BYTES + SUM_BYTES, PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value));
    return row;
}

/* Whether a key is stored as it is. */
static int is_plain(PyObject *key)
{
    return PyBytes_CheckExact(key) && PyBytes_GET_SIZE(key) > 0 && PyBytes_GET_SIZE(key) < HASHED_BYTES;
}

/* Whether a key is plain and has a record (NULL for none, None for a deleted key) with a value that is not
 * large. */
static int is_usual(PyObject *key, PyObject *record)
{
    return is_plain(key) && record != NULL && PyTuple_CheckExact(record) &&
           PyTuple_GET_SIZE(record) == RECORD_FIELDS && PyBytes_CheckExact(PyTuple_GET_ITEM(record, 0)) &&
           PyBytes_GET_SIZE(PyTuple_GET_ITEM(record, 0)) < LARGE_BYTES;
}

/* Find the records of some keys, and have what is read of them come into the processor's caches: in a
 * large memtable they lie anywhere, and to wait for one after the other takes longer than all the rest. */
static int find_records(PyObject *const *keys, int count, PyObject *records, PyObject **found)
{
    for (int n = 0; n < count; n++)
        __builtin_prefetch(keys[n]);
    for (int n = 0; n < count; n++) {
        if ((found[n] = PyDict_GetItemWithError(records, keys[n])) == NULL && PyErr_Occurred())
            return -1;
        __builtin_prefetch(found[n]);
    }
    for (int n = 0; n < count; n++)
        if (is_usual(keys[n], found[n]))
            for (int line = 0; line < LINES; line++)
                __builtin_prefetch((const char *)PyTuple_GET_ITEM(found[n], 0) + line * LINE_BYTES);
    return 0;
}

/* Append a pair of stored key and row, or the key to those that are not usual. */
static int add(PyObject *key, PyObject *record, PyObject *checksum, PyObject *rows, PyObject *rest)
{
    if (!is_usual(key, record))
        return PyList_Append(rest, key);
    PyObject *row = encode(key, record, checksum), *pair = row == NULL ? NULL : PyTuple_Pack(2, key, row);
    int failed = pair == NULL ? -1 : PyList_Append(rows, pair);
    Py_XDECREF(row);
    Py_XDECREF(pair);
    return failed;
}

static int add_all(PyObject *const *keys, Py_ssize_t count, PyObject *records, PyObject *checksum, PyObject *rows,
                   PyObject *rest)
{
    PyObject *found[AT_ONCE];
    for (Py_ssize_t at = 0; at < count; at += AT_ONCE) {
        int some = count - at < AT_ONCE ? (int)(count - at) : AT_ONCE;
        if (find_records(keys + at, some, records, found))
            return -1;
        for (int n = 0; n < some; n++)
            if (add(keys[at + n], found[n], checksum, rows, rest))
                return -1;
    }
    return 0;
}

/* That neither the list nor the dictionary changes meanwhile is the caller's word: `checksum` may let others
 * run. So records and keys are borrowed. */
static PyObject *encode_rows(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 3 || !PyList_CheckExact(args[0]) || !PyDict_CheckExact(args[1]))
        return PyErr_Format(PyExc_TypeError, "encode_rows(stored, records, checksum)");
    PyObject *rows = PyList_New(0), *rest = PyList_New(0);
    if (rows == NULL || rest == NULL ||
        add_all(PySequence_Fast_ITEMS(args[0]), PyList_GET_SIZE(args[0]), args[1], args[2], rows, rest)) {
        Py_XDECREF(rows);
        Py_XDECREF(rest);
        return NULL;
    }
    return Py_BuildValue("NN", rows, rest);
}

/* Whether a stored key and a row are of a plain key, and the row's checksum is that of both; -1 with an
 * exception. */
static int is_whole(PyObject *key, PyObject *row, PyObject *checksum)
{
    if (!is_plain(key) || !PyBytes_CheckExact(row) || PyBytes_GET_SIZE(row) < HEAD_BYTES + SUM_BYTES ||
        PyBytes_GET_SIZE(row) >= LARGE_BYTES)
        return 0;
    const char *head = PyBytes_AS_STRING(row), *value = head + HEAD_BYTES + SUM_BYTES;
    long long sum = sum_up(checksum, key, head, value, PyBytes_GET_SIZE(row) - HEAD_BYTES - SUM_BYTES);
    if (sum == -1)
        return -1;
    char expected[SUM_BYTES];
    put_number(expected, (unsigned long long)sum, SUM_BYTES);
    return memcmp(head + HEAD_BYTES, expected, SUM_BYTES) == 0;
}

static PyObject *unchecked_rows(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyList_CheckExact(args[0]))
        return PyErr_Format(PyExc_TypeError, "unchecked_rows(rows, checksum)");
    PyObject *rest = PyList_New(0);
    for (Py_ssize_t n = 0; rest != NULL && n < PyList_GET_SIZE(args[0]); n++) {
        PyObject *pair = PyList_GET_ITEM(args[0], n); /* borrowed, likewise */
        int whole = PyTuple_CheckExact(pair) && PyTuple_GET_SIZE(pair) == 2
                        ? is_whole(PyTuple_GET_ITEM(pair, 0), PyTuple_GET_ITEM(pair, 1), args[1])
                        : 0;
        if (whole < 0 || (!whole && PyList_Append(rest, pair)))
            Py_CLEAR(rest);
    }
    return rest;
}

static PyMethodDef methods[] = {
    {"encode_rows", (PyCFunction)(void (*)(void))encode_rows, METH_FASTCALL,
     "encode_rows(stored, records, checksum)\n--\n\nSee tables_rows.py."},
    {"unchecked_rows", (PyCFunction)(void (*)(void))unchecked_rows, METH_FASTCALL,
     "unchecked_rows(rows, checksum)\n--\n\nSee tables_rows.py."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_rows", "See rows.py.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__rows(void)
{
    return PyModuleDef_Init(&module);
}
