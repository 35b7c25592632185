"""A child that is a new interpreter: `python -m lrbench.measure.spawned FD`."""

import os
import socket
import sys

from lrbench.measure.channel import Channel
from lrbench.measure.host import end_with_parent, serve

if __name__ == "__main__":
    end_with_parent()
    try:
        serve(Channel(socket.socket(fileno=int(sys.argv[1]))))
    finally:
        os._exit(0)
