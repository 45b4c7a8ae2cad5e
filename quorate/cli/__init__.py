"""The command line: one file for each verb. ``app`` lists the verbs and the exit statuses."""
