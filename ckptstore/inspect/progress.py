"""How long work tells the command line how far it is: what it may import of `ckptstore.progress`."""

from ckptstore.progress import Progress as Progress
