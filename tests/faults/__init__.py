"""The common part of fault tests: processes that work under locks, their resource, and the checks of their leases."""
