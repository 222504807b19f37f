"""The delta log in a folder.

format.py      every byte of a segment and of a frame
vfs.py         the calls that touch files, as a seam for fault tests
layout.py      the folder: names, STORE, OWNER, CLEAN, POISON
segment.py     reading, writing and creating segments
locks.py       the folder lock, the commit lock, and the page that processes share
index/         the disposable index
recovery.py    what happens at open: trust or rebuild the index, cut a torn tail, refuse damage
engine.py      one log in one process: commit, group fsync, reads; and LocalStorage, the handle on it
"""
