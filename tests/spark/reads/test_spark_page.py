"""The script of the page about Spark prints what the page shows."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "use" / "spark.md"
BLOCKS = 3


@pytest.mark.full
def test_script_of_the_page_prints_documented_output(spark, cluster, client, capsys):
    page = PAGE.read_text()
    text = page[page.index("\n## SQL\n") : page.index("\n## Settings\n")]
    shown = re.findall(r"```python\n(.*?)```\n```text\n(.*?)```", text, re.S)
    assert len(shown) == BLOCKS
    names: dict[str, object] = {"spark": spark}
    for block, output in shown:
        code = block.replace("127.0.0.1:7051", cluster.masters)
        exec(compile(code, str(PAGE), "exec"), names)
        assert capsys.readouterr().out == output
    client.drop_table("stock")
