/* Reads RESP without an object for each step. resp_reader.py specifies these functions and holds their
 * twins in Python; a change of either side needs a new ABI number in both.
 *
 * Memory is allocated for bytes that are there, never for what a header claims.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#define ABI 2
#define MOST_DIGITS 9     /* of a count or a length; a longer one is not plain */
#define MOST_COUNTED 1000 /* commands in what a client sent: RUN_COMMANDS of limits.py */
#define SLOTS 16384       /* classes of keys: slots/hashing.py */
#define OWNED 1           /* the state of a slot that is served here: state/ownership.py */

static unsigned short crc_of_byte[256]; /* CRC-16/XMODEM */

typedef struct {
    const char *at;
    const char *end;
} Cursor;

static Cursor cursor_over(PyObject *bytes)
{
    const char *start = PyBytes_AS_STRING(bytes);
    return (Cursor){start, start + PyBytes_GET_SIZE(bytes)};
}

/* Step over "<kind><number>\r\n", the number in its one canonical form; -1 if that is not there. */
static Py_ssize_t read_header(Cursor *cursor, char kind)
{
    const char *p = cursor->at, *end = cursor->end;
    Py_ssize_t number = 0;
    int digits = 0;
    if (p == end || *p != kind)
        return -1;
    for (p++; p < end && *p >= '0' && *p <= '9' && digits < MOST_DIGITS; p++, digits++)
        number = 10 * number + (*p - '0');
    if (digits == 0 || (digits > 1 && p[-digits] == '0') || end - p < 2 || p[0] != '\r' || p[1] != '\n')
        return -1;
    cursor->at = p + 2;
    return number;
}

/* Step over a bulk string and point to its bytes; -1 if no whole one is there. */
static Py_ssize_t read_bulk(Cursor *cursor, const char **bytes)
{
    Py_ssize_t length = read_header(cursor, '$');
    const char *p = cursor->at;
    if (length < 0 || cursor->end - p < length + 2 || p[length] != '\r' || p[length + 1] != '\n')
        return -1;
    *bytes = p;
    cursor->at = p + length + 2;
    return length;
}

/* Take one command; NULL without an exception if no whole one is there. */
static PyObject *take_command(Cursor *cursor, Py_ssize_t most)
{
    Py_ssize_t count = read_header(cursor, '*');
    if (count < 1 || count > most || count > (cursor->end - cursor->at) / 6) /* "$0\r\n\r\n" is the shortest */
        return NULL;
    PyObject *command = PyList_New(count);
    if (command == NULL)
        return NULL;
    for (Py_ssize_t n = 0; n < count; n++) {
        const char *bytes;
        Py_ssize_t length = read_bulk(cursor, &bytes);
        PyObject *argument = length < 0 ? NULL : PyBytes_FromStringAndSize(bytes, length);
        if (argument == NULL) {
            Py_DECREF(command);
            return NULL;
        }
        PyList_SET_ITEM(command, n, argument);
    }
    return command;
}

static PyObject *split_untrusted(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "split_untrusted(data, most): data must be bytes");
    Py_ssize_t most = PyLong_AsSsize_t(args[1]);
    if (most == -1 && PyErr_Occurred())
        return NULL;
    Cursor cursor = cursor_over(args[0]);
    const char *start = cursor.at, *taken = start;
    PyObject *commands = PyList_New(0);
    if (commands == NULL)
        return NULL;
    while (cursor.at < cursor.end) {
        PyObject *command = take_command(&cursor, most);
        if (command == NULL)
            break;
        int failed = PyList_Append(commands, command);
        Py_DECREF(command);
        if (failed)
            break;
        taken = cursor.at;
    }
    if (PyErr_Occurred()) {
        Py_DECREF(commands);
        return NULL;
    }
    return Py_BuildValue("Nn", commands, (Py_ssize_t)(taken - start));
}

/* Step over the name of a command if it is this one, in any mixture of capitals. */
static int read_name(Cursor *cursor, const char *wanted)
{
    const char *name;
    if (read_bulk(cursor, &name) != 3)
        return 0;
    return (name[0] | 32) == wanted[0] && (name[1] | 32) == wanted[1] && (name[2] | 32) == wanted[2];
}

/* Step over a SET or a GET and return its number of arguments; 0 if it is anything else. */
static Py_ssize_t skip_command(Cursor *cursor)
{
    const char *bytes;
    Py_ssize_t count = read_header(cursor, '*');
    if ((count != 3 && count != 2) || !read_name(cursor, count == 3 ? "set" : "get"))
        return 0;
    for (Py_ssize_t n = 1; n < count; n++)
        if (read_bulk(cursor, &bytes) < 0)
            return 0;
    return count;
}

static PyObject *count_untrusted(PyObject *Py_UNUSED(module), PyObject *data)
{
    if (!PyBytes_Check(data))
        return PyErr_Format(PyExc_TypeError, "count_untrusted(data): data must be bytes");
    Cursor cursor = cursor_over(data);
    Py_ssize_t kind = 0, count = 0;
    while (cursor.at < cursor.end) {
        Py_ssize_t found = skip_command(&cursor);
        if (found == 0 || (count && found != kind) || count == MOST_COUNTED)
            return PyLong_FromLong(0);
        kind = found;
        count++;
    }
    return PyLong_FromSsize_t(kind == 3 ? count : -count);
}

/* The slot of a key; if the first braces hold anything, only that counts. */
static int slot_of(const char *key, Py_ssize_t length)
{
    const char *open = memchr(key, '{', length), *close;
    unsigned int crc = 0;
    if (open != NULL) {
        close = memchr(open, '}', key + length - open);
        if (close != NULL && close > open + 1) {
            key = open + 1;
            length = close - key;
        }
    }
    for (Py_ssize_t n = 0; n < length; n++)
        crc = (crc << 8 & 0xffff) ^ crc_of_byte[crc >> 8 ^ (unsigned char)key[n]];
    return crc % SLOTS;
}

static PyObject *owned_untrusted(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(args[0]) || !PyByteArray_Check(args[1]) || PyByteArray_GET_SIZE(args[1]) != SLOTS)
        return PyErr_Format(PyExc_TypeError, "owned_untrusted(data, states): expected bytes and a bytearray of all slots");
    Cursor cursor = cursor_over(args[0]);
    const char *states = PyByteArray_AS_STRING(args[1]), *key, *value;
    while (cursor.at < cursor.end) {
        Py_ssize_t words = read_header(&cursor, '*'), length;
        if ((words != 3 && words != 2) || !read_name(&cursor, words == 3 ? "set" : "get"))
            Py_RETURN_FALSE;
        length = read_bulk(&cursor, &key);
        if (length < 0 || (words == 3 && read_bulk(&cursor, &value) < 0) || states[slot_of(key, length)] != OWNED)
            Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

/* Step over a reply that a SET or a GET may have; whether there is one. */
static int skip_reply(Cursor *cursor)
{
    const char *start = cursor->at, *bytes, *end;
    if (start == cursor->end)
        return 0;
    if (*start == '$') {
        if (read_bulk(cursor, &bytes) >= 0)
            return 1;
        if (cursor->end - start < 5 || memcmp(start, "$-1\r\n", 5))
            return 0;
        cursor->at = start + 5;
        return 1;
    }
    if (*start != '+' && *start != '-' && *start != '_')
        return 0;
    end = memchr(start, '\n', cursor->end - start);
    if (end == NULL || end[-1] != '\r')
        return 0;
    cursor->at = end + 1;
    return 1;
}

static PyObject *cut_replies_untrusted(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 || !PyBytes_Check(args[0]) || !PyList_CheckExact(args[1]))
        return PyErr_Format(PyExc_TypeError, "cut_replies_untrusted(replies, counts): expected bytes and a list");
    Cursor cursor = cursor_over(args[0]);
    Py_ssize_t size = PyList_GET_SIZE(args[1]);
    PyObject *all = PyList_New(size);
    for (Py_ssize_t n = 0; all != NULL && n < size; n++) {
        Py_ssize_t own = PyLong_AsSsize_t(PyList_GET_ITEM(args[1], n));
        const char *from = cursor.at;
        PyObject *one = NULL;
        while (own > 0 && skip_reply(&cursor))
            own--;
        if (own == 0)
            one = PyBytes_FromStringAndSize(from, cursor.at - from);
        if (one == NULL)
            Py_CLEAR(all);
        else
            PyList_SET_ITEM(all, n, one);
    }
    if (PyErr_Occurred())
        return NULL;
    if (all == NULL || cursor.at != cursor.end) {
        Py_XDECREF(all);
        Py_RETURN_NONE;
    }
    return all;
}

static PyMethodDef methods[] = {
    {"split_untrusted", (PyCFunction)(void (*)(void))split_untrusted, METH_FASTCALL,
     "split_untrusted(data, most)\n--\n\nSee resp_reader.py."},
    {"count_untrusted", count_untrusted, METH_O, "count_untrusted(data)\n--\n\nSee resp_reader.py."},
    {"owned_untrusted", (PyCFunction)(void (*)(void))owned_untrusted, METH_FASTCALL,
     "owned_untrusted(data, states)\n--\n\nSee resp_reader.py."},
    {"cut_replies_untrusted", (PyCFunction)(void (*)(void))cut_replies_untrusted, METH_FASTCALL,
     "cut_replies_untrusted(replies, counts)\n--\n\nSee resp_reader.py."},
    {NULL, NULL, 0, NULL},
};

static int prepare(PyObject *module)
{
    for (unsigned int byte = 0; byte < 256; byte++) {
        unsigned int crc = byte << 8;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc << 1 ^ (crc & 0x8000 ? 0x1021 : 0)) & 0xffff;
        crc_of_byte[byte] = crc;
    }
    return PyModule_AddIntConstant(module, "ABI", ABI);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, prepare}, {0, NULL}};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_resp_reader", "See resp_reader.py.", 0, methods, slots, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__resp_reader(void)
{
    return PyModuleDef_Init(&module);
}
