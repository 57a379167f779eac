"""Tests of stores over tables of rows."""
