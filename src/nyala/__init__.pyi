from nyala.client import Client as Client
from nyala.client import PartlyWritten as PartlyWritten
from nyala.client import RowErrors as RowErrors
from nyala.client import Scan as Scan
from nyala.client import ScanToken as ScanToken
from nyala.client import Table as Table
from nyala.client import WriteResult as WriteResult
from nyala.client import connect as connect
from nyala.common import errors as errors
from nyala.common.far_times import FarTime as FarTime
from nyala.common.partition_spec import Hash as Hash
from nyala.common.partition_spec import Partition as Partition
from nyala.common.partition_spec import Range as Range

__version__: str
