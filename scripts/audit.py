"""`./run audit`: known faults of pinned packages (pip-audit), and suspicious patterns in code (bandit).

What bandit finds has been judged: `JUDGED` has the reason for each file and rule. Anything else, and any
known vulnerability of a package, makes the command fail. It is not part of `./run test`: what is known of
packages changes from day to day.
"""

import argparse
import json
import subprocess
import sys

SKIPPED = {
    "B101": "assertions state what the code before them ensures; nothing depends on their effect",
    "B404": "subprocess is imported to start our own servers and Python",
}
"""Rules that are judged for the whole tree."""
JUDGED = {
    ("cli/security/join.py", "B105"): "'-' stands for standard input, from which a token is read",
    ("cli/security/join.py", "B606"): "the joined server replaces this process, without a shell",
    (
        "cli/security/network.py",
        "B104",
    ): "compares with 0.0.0.0, to refuse it as an address of others",
    ("client/modify/statements.py", "B608"): "the text names an operation for people; it is no SQL",
    (
        "env/clock.py",
        "B311",
    ): "seeded by the system; secrets come from `secrets` and `cryptography`",
    (
        "master/repair/observe.py",
        "B311",
    ): "chooses a place for a replica, the same one at each look",
    (
        "spark/jobs/tasks.py",
        "B301",
    ): "reads what tasks of the same Spark job wrote, as PySpark does",
    (
        "spark/jobs/tasks.py",
        "B403",
    ): "reads what tasks of the same Spark job wrote, as PySpark does",
    ("testing/forkserver.py", "B603"): "starts this Python with our own modules",
    ("testing/warm.py", "B603"): "starts this Python with our own modules",
    ("web/access.py", "B105"): "the text of a page, which asks for a password",
}
"""Findings by file below src/nyala and rule, with the reason why each is none."""
SOURCE = "src/nyala/"


def code() -> list[str]:
    """Run bandit over the product; return the findings that nobody has judged."""
    words = ["-q", "-r", SOURCE, "-f", "json", "--skip", ",".join(SKIPPED)]
    done = subprocess.run(
        [sys.executable, "-m", "bandit", *words], capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    found = [(r["filename"].removeprefix(SOURCE), r["test_id"], r) for r in report["results"]]
    seen = {(file, rule) for file, rule, _ in found}
    new = [
        f"{SOURCE}{file}:{r['line_number']}: {rule} {r['issue_text']}"
        for file, rule, r in found
        if (file, rule) not in JUDGED
    ]
    old = [f"{file}: {rule} is judged and not found" for file, rule in JUDGED.keys() - seen]
    failed = [f"{e['filename']}: {e['reason']}" for e in report["errors"]]
    print(f"bandit: {len(found)} findings, {len(new)} of them not judged")
    for (file, rule), reason in sorted(JUDGED.items()):
        print(f"  {file}: {rule}: {reason}")
    for rule, reason in SKIPPED.items():
        print(f"  {rule}: {reason}")
    return [*new, *old, *failed]


def packages(lock: str) -> list[str]:
    """Run pip-audit over the pinned packages of a lock; return the vulnerabilities that are known."""
    words = ["--disable-pip", "--no-deps", "--progress-spinner", "off", "-f", "json", "-r", lock]
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", *words], capture_output=True, text=True, check=False
    )
    if not done.stdout.strip():
        return [f"{lock}: pip-audit failed: {done.stderr.strip()[-300:]}"]
    found = json.loads(done.stdout)["dependencies"]
    unknown = [d["name"] for d in found if "skip_reason" in d]
    known = [
        f"{lock}: {d['name']} {d['version']}: {v['id']}, mended in {', '.join(v['fix_versions'])}"
        for d in found
        for v in d.get("vulns", [])
    ]
    print(f"pip-audit: {lock}: {len(found)} packages, {len(known)} known vulnerabilities")
    if unknown:
        known.append(
            f"{lock}: {len(unknown)} packages are not known to the service, as {unknown[0]}"
        )
    return known


def main() -> int:
    """Run both; return the exit status."""
    parser = argparse.ArgumentParser(prog="./run audit", description=__doc__)
    parser.add_argument("--code", action="store_true", help="bandit only, which needs no network")
    asked = parser.parse_args()
    failures = code()
    if not asked.code:
        for lock in ("requirements/spark.lock", "requirements/dev.lock"):
            failures += packages(lock)
    for failure in failures:
        print(failure)
    print("FAILED" if failures else "OK")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
