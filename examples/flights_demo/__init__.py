"""`./run demo`: the main job on a local cluster, with kill -9 on the way and every result checked."""
