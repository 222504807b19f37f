"""`python -m ckptstore.cli` is `ckpt`."""

from ckptstore.cli import main

main()
