"""The command line, one module for each verb or two.

`app` lists the verbs, runs one, and turns errors into exit statuses. It imports the module of a
verb when the verb is called, so that `quorate run` starts fast. A verb is a function: its
parameters are the options, its docstring is the help, and it returns the exit status. `params` has
the options that verbs share.

There is no logic of the cluster here: the verbs call `local`, `storage.tools`, `node` and so on.
The verb `demo` is in :mod:`quorate.demo.story`.

Read first: `app`, then `status` as an example of a verb.
"""
