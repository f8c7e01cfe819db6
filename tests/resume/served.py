"""A server with a world for each connection; `python served.py` prints its port, then a line for each connection."""

import random
import selectors
import socket
import struct

server, chosen = socket.create_server(("127.0.0.1", 0)), selectors.DefaultSelector()
worlds = {}
chosen.register(server, selectors.EVENT_READ)
print(server.getsockname()[1], flush=True)
while True:
    for key, _ in chosen.select():
        line = key.fileobj
        if line is server:
            line, _ = server.accept()
            worlds[line] = random.Random(5)
            chosen.register(line, selectors.EVENT_READ)
            print("connected", flush=True)
        elif asked := line.recv(8, socket.MSG_WAITALL):
            (number,) = struct.unpack("q", asked)  # a seed begins an episode, -1 asks for a number
            if number >= 0:
                worlds[line].seed(number)
            line.sendall(struct.pack("q", worlds[line].randrange(1000)))
        else:
            chosen.unregister(line)
            line.close()
            print("left", flush=True)
