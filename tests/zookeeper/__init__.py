"""The directory in ZooKeeper, and the way to it."""
