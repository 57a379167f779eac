"""The stores: one module or package per store, each of which meets the contract in `tenure.contracts.store`."""
