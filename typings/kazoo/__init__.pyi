"""The part of kazoo that the ZooKeeper store uses."""
