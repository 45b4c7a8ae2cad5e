"""RESP: any bytes are parsed or refused with one documented error, in bounded memory."""
