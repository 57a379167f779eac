"""Tests of the guards of leases in resources."""
