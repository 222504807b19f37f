"""A store without the application that wrote it: what the command line shows and does. Never builds an object that the file names.

All of it only reads, but for changes.py.

opened.py     a store folder opened for looking; looking.py, with a word where not all of it can be seen
stats.py      what a store is, and where its bytes go; channels.py, by channel
threads.py    the threads of a store
tree.py       the checkpoints of a lane; refs.py, how one is named
show.py       one checkpoint; writes.py, the writes on it; diff.py, what differs from another
rendering.py  values as trees; masking.py, secrets in metadata
health.py     whether all is well
changes.py    compacting, pruning, deleting, copying, backup, restore and salvage, each looked at before it is done
"""
