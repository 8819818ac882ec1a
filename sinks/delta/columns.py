"""Types that a column of a Delta table can have.

Pure: values. Source: the Delta protocol, "Primitive Types" and "Partition Value Serialization".
"""

from __future__ import annotations

import pyarrow as pa

from holdfast.sinks.lakehouse.columns import TableFormat

DELTA = TableFormat(
    name="Delta",
    table="a Delta table",
    wider={pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()},
    not_in_names=" ,;{}()\n\t=`",  # characters that need column mapping, and those that quote a name
    read_as_null=frozenset({"", "__HIVE_DEFAULT_PARTITION__"}),  # the second is how folders spell a null
)
