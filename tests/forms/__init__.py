"""Tests of the number of the stored form: what a client does with a store that another release has written."""
