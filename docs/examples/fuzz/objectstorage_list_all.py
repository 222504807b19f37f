"""ObjectStorageSaver: listing all threads raises

package: langgraph-checkpoint-objectstorage 0.1.15
rule: 2
fails: TypeError
"""

import tempfile

from langgraph_checkpoint_objectstorage import ObjectStorageSaver

saver = ObjectStorageSaver.from_conn_string("file://" + tempfile.mkdtemp())
# TypeError: "'NoneType' object is not subscriptable"
list(saver.list(None))
