"""Reads a table through executors, and prints the number of its rows. A program of the tests."""

import nyala.spark
from tests.spark.modes.exercise import session


def main() -> None:
    """Print the number of rows."""
    spark = session("-")
    try:
        print("rows", nyala.spark.read(spark, "from_rows").count())
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
