"""`python -m nyala.spark.jobs NAME ...`, and this file for `spark-submit`."""

import os
import sys

from nyala.client.calls.connecting import ENVIRONMENT
from nyala.spark.jobs.commands import main
from nyala.spark.session import program_session

if __name__ == "__main__":
    known = os.environ.get(ENVIRONMENT, "")
    sys.exit(
        main(
            sys.argv[1:], "python -m nyala.spark.jobs", known, lambda: program_session("nyala job")
        )
    )
