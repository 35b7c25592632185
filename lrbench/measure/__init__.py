"""Measures one point: memory, time, operations. What a number means and how it is obtained, each in a file of its own.

`children` starts the processes, `server` is what they are forked from, `host` is what runs inside them, `region` builds
what is measured.
"""
