"""The gateway: the methods of the API as HTTP/1.1 with JSON.

- `server.py`: requests on a connection, and where each goes
- `talk.py`: bytes of one connection, by h11
- `unary.py`: calls with one reply
- `streams.py`: calls whose replies are a stream; `requests.py`: their requests
- `pages.py`: version, health and figures
- `answers.py`: whole answers, and the forms of errors
- `json_messages.py`: requests as JSON; `json_values.py`: values, and the texts of errors about them
- `json_replies.py`: replies as JSON

Read first: `server.py`, `json_messages.py`.
"""
