from nyala.client import ChangeBatch as ChangeBatch
from nyala.client import ChangeFeed as ChangeFeed
from nyala.client import Client as Client
from nyala.client import Entry as Entry
from nyala.client import Invalidated as Invalidated
from nyala.client import Journal as Journal
from nyala.client import Key as Key
from nyala.client import Log as Log
from nyala.client import PartlyWritten as PartlyWritten
from nyala.client import Rebased as Rebased
from nyala.client import RowErrors as RowErrors
from nyala.client import Scan as Scan
from nyala.client import ScanToken as ScanToken
from nyala.client import Synced as Synced
from nyala.client import Table as Table
from nyala.client import WriteResult as WriteResult
from nyala.client import connect as connect
from nyala.common import errors as errors
from nyala.common.errors import ConditionFailed as ConditionFailed
from nyala.common.errors import JournalFull as JournalFull
from nyala.common.errors import LogGone as LogGone
from nyala.common.far_times import FarTime as FarTime
from nyala.common.partition_spec import Hash as Hash
from nyala.common.partition_spec import Partition as Partition
from nyala.common.partition_spec import Range as Range

__version__: str
