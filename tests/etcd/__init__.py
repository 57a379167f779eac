"""The directory over etcd."""
