"""Load generator and measured scans."""
