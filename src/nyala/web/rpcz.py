"""Page of the calls of the public port: those under way, the slow and the recent ones."""

from nyala.web.pages import Listing
from nyala.wire.rpc_metrics import RpcMetrics


def rpcz_page(metrics: RpcMetrics) -> Listing:
    """Return the page: calls under way, the oldest first; then slow and recent ones, the latest first.

    It has methods, users, sizes and times, and nothing of the content of requests.
    """
    recent, slow, now_us = metrics.ended()
    active, more = metrics.under_way()
    rows = [
        ("under way", c.method, "-", c.user or "-", f"{(now_us - c.start_us) / 1000:.1f}",
         str(c.request_bytes), f"{(now_us - c.start_us) / 1e6:.1f}")
        for c in active
    ]  # fmt: skip
    rows += [
        (what, c.method, c.code, c.user or "-", f"{c.duration_us / 1000:.1f}", str(c.request_bytes),
         f"{(now_us - c.start_us) / 1e6:.1f}")
        for what, calls in (("slow", slow), ("recent", recent))
        for c in calls
    ]  # fmt: skip
    return Listing(
        f"calls ({more} more are under way)" if more else "calls",
        ("list", "method", "result", "user", "ms", "request bytes", "began s ago"),
        rows,
    )
