"""Looking inside a store without the application that wrote it: reads only, and never builds an object that the file names.

opened.py   a store folder opened for looking
stats.py    what a store is, and where its bytes go
threads.py  the threads of a store
"""
