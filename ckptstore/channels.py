"""The channel kinds of native threads.

>>> from ckptstore import channels
>>> channels.fold(channels.append(), ["hi"], [["hello!"]])
['hi', 'hello!']
"""

from ckptstore.state.channels import (
    UNSET,
    Channel,
    Overwrite,
    append,
    fold,
    keyed,
    last_value,
    merge,
    reduce,
    remove,
)

__all__ = ["UNSET", "Channel", "Overwrite", "append", "fold", "keyed", "last_value", "merge", "reduce", "remove"]
