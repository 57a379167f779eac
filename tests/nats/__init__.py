"""Tests of the NATS store."""
