"""The directory in ZooRenewer, and the way to it."""
