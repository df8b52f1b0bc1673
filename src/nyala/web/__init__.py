"""The web port: pages and metrics from values that the services pass in."""
